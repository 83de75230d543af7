#include "python/python_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace rpc_backends {

namespace {

constexpr std::chrono::milliseconds kHaltPause{5};
// How long a signal may take to interrupt a thread that sleeps.
constexpr std::chrono::milliseconds kSignalTime{100};

// The threads with a PythonState. Never destroyed: they may outlive the static objects.
struct States {
  std::mutex mutex;
  std::set<pid_t> threads;
};

States& states() {
  static auto* const states = new States;
  return *states;
}

pid_t this_thread() {
  return static_cast<pid_t>(::syscall(SYS_gettid));
}

// The thread that halt() is to stop, and then 0.
std::atomic<pid_t> wanted{0};

void halt(int /*signal*/) {
  pid_t self = this_thread();
  if (wanted.compare_exchange_strong(self, 0)) {
    for (;;) {
      ::pause();
    }
  }
}

// The state of a thread as the kernel shows it, 'S' if it sleeps in a system call that a signal interrupts; 0 if there
// is no such thread in this process.
char state_of(pid_t thread) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/stat";
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) {
    return 0;
  }
  char text[512] = {};
  const std::string stat(text, std::fread(text, 1, sizeof text, file));
  std::fclose(file);
  const size_t name_end = stat.rfind(") ");  // a name may have parentheses
  return name_end == std::string::npos || name_end + 2 >= stat.size() ? '\0' : stat[name_end + 2];
}

// Returns a signal that the program does not use, with halt() as its handler; 0 if there is none.
int prepare_signal() {
  struct sigaction action{};
  for (int signal = SIGRTMAX; signal >= SIGRTMIN; --signal) {
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_DFL) {
      action = {};
      action.sa_handler = halt;
      return ::sigaction(signal, &action, nullptr) == 0 ? signal : 0;
    }
  }
  return 0;
}

// Returns whether the thread is halted, or has ended.
bool try_to_halt(pid_t thread, int signal) {
  const char state = state_of(thread);
  if (state != 'S') {  // one that sleeps holds no lock of the allocator
    return state == 0;
  }
  wanted = thread;
  if (::syscall(SYS_tgkill, ::getpid(), thread, signal) != 0) {
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + kSignalTime;
  while (wanted == thread && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  return wanted.exchange(0) == 0;
}

}  // namespace

thread_local PythonState* PythonState::current_ = nullptr;

PythonState::PythonState() : thread_(this_thread()) {
  current_ = this;
  const std::lock_guard<std::mutex> lock(states().mutex);
  states().threads.insert(thread_);
}

void PythonState::keep() {
  PythonState* const self = current_;
  if (self == nullptr || self->state_ != nullptr || Py_IsInitialized() == 0 ||
      PyGILState_GetThisThreadState() != nullptr) {
    return;
  }
  PyGILState_Ensure();
  self->state_ = PyEval_SaveThread();
}

PythonState::~PythonState() {
  current_ = nullptr;
  // After the interpreter has ended there is nothing to release.
  if (state_ != nullptr && Py_IsInitialized() != 0) {
    PyEval_RestoreThread(state_);
    PyGILState_Release(PyGILState_UNLOCKED);
  }
  const std::lock_guard<std::mutex> lock(states().mutex);
  states().threads.erase(thread_);
}

void PythonState::halt_others(std::chrono::milliseconds limit) {
  std::set<pid_t> threads;
  {
    const std::lock_guard<std::mutex> lock(states().mutex);
    threads = states().threads;
  }
  threads.erase(this_thread());
  int signal = 0;
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!threads.empty() && (signal != 0 || (signal = prepare_signal()) != 0)) {
    for (auto thread = threads.begin(); thread != threads.end();) {
      thread = try_to_halt(*thread, signal) ? threads.erase(thread) : std::next(thread);
    }
    if (std::chrono::steady_clock::now() >= end) {
      break;
    }
    if (!threads.empty()) {
      std::this_thread::sleep_for(kHaltPause);  // those that compute may soon ask for the GIL, and then sleep
    }
  }
}

}  // namespace rpc_backends
