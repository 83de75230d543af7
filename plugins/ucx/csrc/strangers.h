// Greetings of workers that are not known yet, while Python looks up who they are. Needs the transport's lock.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "inbox.h"
#include "rpc_backends_agents/callback_thread.h"

namespace rpc_backends::ucx {

// A greeting that has come.
struct Greeted {
  wire::Greeting head;
  std::string identity;  // the proof of the sender's certificate, if it has one
};

class Strangers {
 public:
  Strangers(CallbackThread& callback_thread, Inbox& inbox, Counters& counters)
      : callback_thread_(callback_thread), inbox_(inbox), counters_(counters) {}

  // Looks up whose proof this is. If the lookup makes the worker known, take() returns its greeting.
  void look_up(const std::string& proof, const Greeted& greeting);
  std::optional<Greeted> take(const std::string& proof);

  // Refuses the strangers that are still unknown after their lookup; returns whether a lookup has ended.
  bool finish_lookups();

 private:
  std::optional<std::string> next_looked_up();
  void refuse(uint32_t from);

  CallbackThread& callback_thread_;
  Inbox& inbox_;
  Counters& counters_;
  std::unordered_map<std::string, Greeted> greetings_;  // by proof

  std::mutex mutex_;                  // may be locked while the transport's lock is held; never the reverse
  std::list<std::string> looked_up_;  // proofs
  std::atomic<bool> has_looked_up_{false};
};

}  // namespace rpc_backends::ucx
