// Detects whether this process was forked from the process that created an object. A forked child has the memory of an
// agent or transport but not its threads, so it must neither use nor destroy it.
#pragma once

#include <pthread.h>

#include <atomic>

namespace rpc_backends {

class Birthplace {
 public:
  bool is_elsewhere() const { return forks_ != count(); }

 private:
  static std::atomic<unsigned>& count() {
    static std::atomic<unsigned> forks{0};
    static const int registered = pthread_atfork(nullptr, nullptr, [] { ++count(); });
    (void)registered;
    return forks;
  }

  const unsigned forks_ = count();
};

}  // namespace rpc_backends
