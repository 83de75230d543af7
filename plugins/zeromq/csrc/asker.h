// The thread on which a transport's owner is asked and told: whoever that is may wait there for what it
// likes (Python's GIL, a store), and nothing else of the transport does.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace rpc_backends::zeromq {

class Asker {
 public:
  // Whose public key (Z85) it is; none for nobody's.
  using OnUnknownKey = std::function<std::optional<int>(const std::string& key)>;
  // A line for the log.
  using OnRefused = std::function<void(const std::string& line)>;
  using Answer = std::function<void(std::optional<int>)>;

  // Either may be empty.
  Asker(OnUnknownKey on_unknown_key, OnRefused on_refused);
  ~Asker() { stop(); }

  bool can_ask() const { return static_cast<bool>(on_unknown_key_); }

  // Returns false if too many are waiting already; else `answer` is called, on this thread.
  bool ask(const std::string& key, Answer answer);

  // Dropped if too many are waiting already.
  void tell(const std::string& line);

  // Waits for a call that is under way, and drops the others.
  void stop();

  bool is_this_thread() const { return thread_.get_id() == std::this_thread::get_id(); }

 private:
  bool add(std::function<void()> task);
  void live();

  const OnUnknownKey on_unknown_key_;
  const OnRefused on_refused_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> tasks_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
