// The thread on which a transport's owner is asked and told: whoever that is may wait there for what it
// likes (Python's GIL, a store), and nothing else of the transport does.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace rpc_backends::zeromq {

class CallbackThread {
 public:
  // Whose public key (Z85) it is, which was asked so many seconds ago; none for nobody's.
  using OnUnknownKey = std::function<std::optional<int>(const std::string& key, double waited)>;
  // A line for the log.
  using OnRefused = std::function<void(const std::string& line)>;
  using Answer = std::function<void(std::optional<int>)>;

  // Either may be empty.
  CallbackThread(OnUnknownKey on_unknown_key, OnRefused on_refused);
  ~CallbackThread() { stop(); }

  bool can_look_up() const;

  // Returns false if too many are waiting already; else `answer` is called, on this thread. It must not
  // wait.
  bool look_up(const std::string& key, Answer answer);

  // Dropped if too many are waiting already.
  void report(const std::string& line);

  // Drops what has not begun, and waits a while for a call that is under way. One that does not end is
  // left alone, and its answer is dropped.
  void stop();

 private:
  struct State;

  // The thread's too, which may be left alone.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace rpc_backends::zeromq
