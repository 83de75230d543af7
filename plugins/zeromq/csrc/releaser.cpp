#include "releaser.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "thread.h"

namespace rpc_backends::zeromq {

namespace {

// How long releases may take after the transport is closed: as long as a program may hold the GIL.
constexpr std::chrono::seconds kGracePeriod{10};

}  // namespace

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

Releaser::Releaser() : state_(std::make_shared<State>()) {
  thread_ = start_thread("rpc-zmq-release", [state = state_] { state->loop(); });
}

void Releaser::hold(Parts& parts) const noexcept {
  try {
    for (Part& part : parts) {
      if (part.owner && part.size > wire::kMaxInHead) {
        part.owner = std::make_shared<Owner>(state_, std::move(part.owner));
      }
    }
  } catch (const std::bad_alloc&) {
    // The other owners are released wherever the last reference is dropped.
  }
}

void Releaser::stop() {
  stop_thread(thread_, *state_, kGracePeriod);
}

}  // namespace rpc_backends::zeromq
