#include "process_faults.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <system_error>

#include "rpc_backends_agents/threads.h"

namespace rpc_backends {

namespace {

using Clock = std::chrono::steady_clock;

std::mutex mutex;

Clock::time_point in(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// --- memory

int limits = 0;         // how many faults limit the memory now
uint64_t all_ends = 0;  // how often all faults were ended
rlimit before{};

// Never destroyed, because threads may wait for it while the process exits.
std::condition_variable& end_of_all() {
  static std::condition_variable& condition = *new std::condition_variable;
  return condition;
}

// Needs the lock, and a limit.
void free_limit() {
  --limits;
  if (limits == 0) {
    ::setrlimit(RLIMIT_AS, &before);
  }
}

uint64_t address_space() {
  uint64_t pages = 0;
  std::ifstream file("/proc/self/statm");
  if (!(file >> pages)) {
    pages = 0;
  }
  return pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// --- stores

Clock::time_point stores_until{};  // NOLINT(bugprone-throwing-static-initialization): it is initialised at compile time
double stores_each = 0;

// --- the clock

std::atomic<int64_t> moved{0};  // nanoseconds
using ClockGettime = int (*)(clockid_t, timespec*);
using Time = time_t (*)(time_t*);

bool is_wall_clock(clockid_t id) {
  return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
}

int moved_clock_gettime(clockid_t id, timespec* now) {
  const int result = ::clock_gettime(id, now);
  if (result == 0 && is_wall_clock(id)) {
    constexpr int64_t kSecond = 1'000'000'000;
    const int64_t all = static_cast<int64_t>(now->tv_sec) * kSecond + now->tv_nsec + moved;
    now->tv_sec = static_cast<time_t>(all / kSecond);
    now->tv_nsec = static_cast<long>(all % kSecond);
  }
  return result;
}

time_t moved_time(time_t* result) {
  timespec now{};
  moved_clock_gettime(CLOCK_REALTIME, &now);
  if (result != nullptr) {
    *result = now.tv_sec;
  }
  return now.tv_sec;
}

bool write_slot(void** slot, void* function) {
  const auto size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot) & ~(size - 1));
  if (::mprotect(page, size, PROT_READ | PROT_WRITE) != 0) {
    return false;
  }
  // The page stays writable, because other threads may resolve functions in it.
  __atomic_store_n(slot, function, __ATOMIC_RELEASE);
  return true;
}

// Redirects the calls of the clock in one loaded object, whose table of imported functions is changed.
int redirect(const dl_phdr_info* object) {
  const auto base = object->dlpi_addr;
  const ElfW(Dyn)* entry = nullptr;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) {
      entry = reinterpret_cast<const ElfW(Dyn)*>(base + object->dlpi_phdr[i].p_vaddr);
    }
  }
  if (entry == nullptr) {
    return 0;
  }
  // The loader of some platforms leaves addresses relative.
  const auto address = [&](ElfW(Addr) value) { return value < base ? base + value : value; };
  ElfW(Addr) symbols = 0;
  ElfW(Addr) names = 0;
  ElfW(Addr) tables[2] = {0, 0};
  size_t sizes[2] = {0, 0};
  for (; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_SYMTAB:
        symbols = address(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        names = address(entry->d_un.d_ptr);
        break;
      case DT_JMPREL:
        tables[0] = address(entry->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        sizes[0] = entry->d_un.d_val;
        break;
      case DT_RELA:
        tables[1] = address(entry->d_un.d_ptr);
        break;
      case DT_RELASZ:
        sizes[1] = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  int redirected = 0;
  for (int table = 0; table < 2 && symbols != 0 && names != 0; ++table) {
    const auto* const entries = reinterpret_cast<const ElfW(Rela)*>(tables[table]);
    for (size_t i = 0; entries != nullptr && i < sizes[table] / sizeof(*entries); ++i) {
      const size_t number = ELF64_R_SYM(entries[i].r_info);
      if (number == 0) {
        continue;
      }
      const auto& symbol = reinterpret_cast<const ElfW(Sym)*>(symbols)[number];
      const char* const name = reinterpret_cast<const char*>(names) + symbol.st_name;
      auto** const slot = reinterpret_cast<void**>(base + entries[i].r_offset);
      if (std::strcmp(name, "clock_gettime") == 0) {
        redirected += write_slot(slot, reinterpret_cast<void*>(&moved_clock_gettime)) ? 1 : 0;
      } else if (std::strcmp(name, "time") == 0) {
        write_slot(slot, reinterpret_cast<void*>(&moved_time));
      }
    }
  }
  return redirected;
}

// The program and libpython hold all of Python's calls of the clock; extension modules keep the clock of the system.
int redirect_python(dl_phdr_info* object, size_t /*size*/, void* redirected) {
  const char* const name = object->dlpi_name;
  if (name == nullptr || name[0] == '\0' || std::strstr(name, "libpython") != nullptr) {
    *static_cast<int*>(redirected) += redirect(object);
  }
  return 0;
}

}  // namespace

bool limit_memory(uint64_t bytes, double seconds) {
  const std::lock_guard<std::mutex> lock(mutex);
  rlimit now{};
  if (::getrlimit(RLIMIT_AS, &now) != 0) {
    return false;
  }
  try {
    // Before the limit: with little memory, no thread can be started, and the limit would stay.
    start_thread("rpc-faults", [until = in(seconds), ends = all_ends] {
      std::unique_lock<std::mutex> its_lock(mutex);
      if (!end_of_all().wait_until(its_lock, until, [ends] { return all_ends != ends; })) {
        free_limit();
      }
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  if (limits++ == 0) {
    before = now;
  }
  rlimit limit = before;
  limit.rlim_cur = std::min<rlim_t>(before.rlim_cur, address_space() + bytes);
  ::setrlimit(RLIMIT_AS, &limit);
  return true;
}

void hold_stores(double seconds, double each) {
  const std::lock_guard<std::mutex> lock(mutex);
  stores_until = in(seconds);
  stores_each = each;
}

double store_delay() {
  const std::lock_guard<std::mutex> lock(mutex);
  const double left = std::chrono::duration<double>(stores_until - Clock::now()).count();
  return left <= 0 ? 0 : stores_each > 0 ? stores_each : left;
}

bool move_clock(double seconds) {
  static const bool redirected = [] {
    int redirected_calls = 0;
    ::dl_iterate_phdr(&redirect_python, &redirected_calls);
    return redirected_calls > 0;
  }();
  moved += std::llround(seconds * 1e9);
  return redirected;
}

void end_process_faults() {
  const std::lock_guard<std::mutex> lock(mutex);
  stores_until = {};
  ++all_ends;
  end_of_all().notify_all();
  while (limits > 0) {
    free_limit();
  }
}

}  // namespace rpc_backends
