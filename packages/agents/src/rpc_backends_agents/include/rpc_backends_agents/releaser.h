// The thread that releases the owners of sent memory. Releasing an owner may block: for a NumPy array it takes the GIL.
// When a transport learns that memory was sent, it runs on a thread, or holds a lock, that all connections need.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backends_agents/threads.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

class Releaser {
 public:
  // `name`: of the thread, at most 15 characters. `least`: parts of at most this many bytes keep their owners.
  Releaser(const char* name, size_t least);
  ~Releaser() { stop(); }

  // Makes the owners of `parts` be released on this thread, wherever the last reference to a part is dropped. Small
  // parts keep their owners: they are copied before they are sent, or belong to the agent.
  void hold(Parts& parts) const noexcept;

  // Waits a grace period until everything queued is released. A release that hangs is left behind; later releases
  // run where the reference is dropped.
  void stop();

 private:
  // How long releases may take after the transport is closed: as long as a program may hold the GIL.
  static constexpr std::chrono::seconds kGracePeriod{10};

  struct State;
  struct Owner;

  const size_t least_;
  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<State> state_;
  std::thread thread_;
};

struct Releaser::State {
  // Returns false, and leaves the owner to the caller, if the thread has ended or memory is short.
  bool add(std::shared_ptr<void>& owner) noexcept {
    try {
      std::lock_guard<std::mutex> lock(mutex);
      if (stopped) {
        return false;
      }
      owners.push_back(std::move(owner));
      if (owners.size() > 1) {
        return true;  // the thread was woken already
      }
    } catch (const std::bad_alloc&) {
      return false;
    }
    changed.notify_all();
    return true;
  }

  void loop() {
    std::unique_lock<std::mutex> lock(mutex);
    std::vector<std::shared_ptr<void>> batch;
    for (;;) {
      changed.wait(lock, [this] { return stopped || !owners.empty(); });
      if (owners.empty()) {
        break;
      }
      batch.swap(owners);
      lock.unlock();
      batch.clear();
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<void>> owners;
  bool stopped = false;
  bool ended = false;
};

// Replaces the owner of a part.
struct Releaser::Owner {
  Owner(std::shared_ptr<State> to, std::shared_ptr<void> what) : state(std::move(to)), owner(std::move(what)) {}
  ~Owner() { state->add(owner); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

  const std::shared_ptr<State> state;
  std::shared_ptr<void> owner;
};

inline Releaser::Releaser(const char* name, size_t least) : least_(least), state_(std::make_shared<State>()) {
  thread_ = start_thread(name, [state = state_] { state->loop(); });
}

inline void Releaser::hold(Parts& parts) const noexcept {
  try {
    for (Part& part : parts) {
      if (part.owner && part.size > least_) {
        part.owner = std::make_shared<Owner>(state_, std::move(part.owner));
      }
    }
  } catch (const std::bad_alloc&) {
    // The other owners are released wherever the last reference is dropped.
  }
}

inline void Releaser::stop() {
  stop_thread(thread_, *state_, kGracePeriod);
}

}  // namespace rpc_backends
