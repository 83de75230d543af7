// What must happen although memory is short: without it, a lost peer's callers would wait until their time-outs.
#pragma once

#include <chrono>
#include <new>
#include <thread>

namespace rpc_backends::zeromq {

// Does `step`, and again after a pause as long as memory is short, for a second; then throws std::bad_alloc. A step
// that throws must have changed nothing that the next try needs.
template <typename Step>
void insist(const Step& step) {
  constexpr int kTries = 100;
  for (int tries = 1;; ++tries) {
    try {
      step();
      return;
    } catch (const std::bad_alloc&) {
      if (tries == kTries) {
        throw;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace rpc_backends::zeromq
