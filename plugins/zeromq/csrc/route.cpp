#include "route.h"

#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::zeromq {

namespace {

// Does not start with a zero byte, because libzmq's own names do.
constexpr char kForm[4] = {'R', 'P', 'C', 1};

struct Layout {
  char form[4];
  int32_t worker;
  uint64_t time;
  uint64_t random;
};
static_assert(sizeof(Layout) == 24);

uint64_t next_time() {
  static std::atomic<uint64_t> last{0};
  const auto now =
      static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count());
  uint64_t before = last;
  uint64_t next = 0;
  do {
    next = now > before ? now : before + 1;
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
    throw TransportError(std::string("no random numbers: ") + std::strerror(errno));
  }
  return number;
}

}  // namespace

Route Route::make(int worker) {
  const Layout layout{{kForm[0], kForm[1], kForm[2], kForm[3]}, worker, next_time(), random_number()};
  return {worker, layout.time, std::string(reinterpret_cast<const char*>(&layout), sizeof layout)};
}

std::optional<Route> Route::parse(const void* data, size_t size) {
  Layout layout{};
  if (size != sizeof layout) {
    return std::nullopt;
  }
  std::memcpy(&layout, data, sizeof layout);
  if (std::memcmp(layout.form, kForm, sizeof kForm) != 0 || layout.worker < 0) {
    return std::nullopt;
  }
  return Route{layout.worker, layout.time, std::string(static_cast<const char*>(data), size)};
}

}  // namespace rpc_backends::zeromq
