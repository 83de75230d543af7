#include "strangers.h"

#include <new>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The most greetings that wait for a lookup. Unknown processes can send them, so there is a limit.
constexpr size_t kMostStrangers = 1000;

}  // namespace

void Strangers::look_up(const std::string& proof, const Greeted& greeting) {
  if (greetings_.size() >= kMostStrangers || !callback_thread_.can_look_up()) {
    refuse(greeting.head.from);
    return;
  }
  greetings_.insert_or_assign(proof, Greeted(greeting));
  bool is_queued = false;
  try {
    // The entry is made here: if memory is short on the callback thread, the answer is lost.
    is_queued = callback_thread_.look_up(
        proof, [this, looked_up = std::list<std::string>{proof}](std::optional<int> /*peer*/) mutable {
          // Runs without the transport's lock, because the callback thread holds its own.
          {
            std::lock_guard<std::mutex> lock(mutex_);
            looked_up_.splice(looked_up_.end(), looked_up);
            has_looked_up_ = true;
          }
          inbox_.nudge();
        });
  } catch (const std::bad_alloc&) {
    greetings_.erase(proof);  // nothing else would
    throw;
  }
  if (!is_queued) {
    greetings_.erase(proof);
    refuse(greeting.head.from);
  }
}

std::optional<Greeted> Strangers::take(const std::string& proof) {
  const auto waiting = greetings_.find(proof);
  if (waiting == greetings_.end()) {
    return std::nullopt;
  }
  Greeted greeting = std::move(waiting->second);
  greetings_.erase(waiting);
  return greeting;
}

bool Strangers::finish_lookups() {
  if (!has_looked_up_.exchange(false)) {
    return false;
  }
  while (const auto proof = next_looked_up()) {
    if (const auto greeting = take(*proof)) {  // if the worker is known by now, learn() has taken it
      refuse(greeting->head.from);
    }
  }
  return true;
}

std::optional<std::string> Strangers::next_looked_up() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (looked_up_.empty()) {
    return std::nullopt;
  }
  std::string proof = std::move(looked_up_.front());
  looked_up_.pop_front();
  return proof;
}

// The sender gets no answer, because its address is unknown. Its own time limit ends the attempt.
void Strangers::refuse(uint32_t from) {
  ++counters_.refused;
  callback_thread_.report("a process greets as worker " + std::to_string(from) +
                          ", without the proof that it belongs to this group");
}

}  // namespace rpc_backends::ucx
