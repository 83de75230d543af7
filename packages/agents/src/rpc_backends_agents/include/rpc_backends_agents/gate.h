// Admits calls until it is closed, and lets a thread wait until the last call has finished.
#pragma once

#include <atomic>
#include <cstdint>

namespace rpc_backends {

class Gate {
 public:
  // A call in progress; false if the gate was closed before it began.
  class Pass {
   public:
    explicit Pass(Gate& gate) : gate_(gate), inside_((gate.state_.fetch_add(1) & kClosed) == 0) {}
    ~Pass() {
      if (gate_.state_.fetch_sub(1) == kClosed + 1) {
        gate_.state_.notify_all();
      }
    }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    explicit operator bool() const { return inside_; }

   private:
    Gate& gate_;
    const bool inside_;
  };

  bool is_closed() const { return (state_ & kClosed) != 0; }

  void close() { state_.fetch_or(kClosed); }

  // Call close() first.
  void wait_until_empty() {
    for (uint64_t state = state_; state != kClosed; state = state_) {
      state_.wait(state);
    }
  }

 private:
  static constexpr uint64_t kClosed = uint64_t{1} << 63;

  std::atomic<uint64_t> state_{0};
};

}  // namespace rpc_backends
