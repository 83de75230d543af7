// Whether this process was forked off the one in which something was made. Of an agent the child has the memory
// and none of the threads, so it must neither use one nor take it to pieces.
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
