#include "record/recorder.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "record/json.h"
#include "record/names.h"
#include "rpc_backends_agents/interceptor.h"

namespace rpc_backends {

namespace {

// Seconds between two dumps, and the number of dumps that a worker keeps.
constexpr auto kDumpPause = std::chrono::seconds(10);
constexpr uint64_t kMostDumps = 20;
// The dumps that this process has written.
std::atomic<uint64_t> dumps_written{0};
// Microseconds of a state with the last calls.
constexpr int64_t kLast = 5'000'000;
// The eventfd of the recorder that SIGUSR1 wakes, and what it writes there.
std::atomic<int> signalled{-1};
constexpr uint64_t kSignal = uint64_t{1} << 32;

void on_signal(int /*number*/) {
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = ::write(signalled, &kSignal, sizeof kSignal);
  errno = saved;
}

// Seconds that a reader of the socket may take for one step.
constexpr time_t kReaderTimeout = 5;

void write_call(Json& json, const RecordedCall& call, const CallLog& log, const std::map<int, std::string>& members) {
  const auto member = members.find(call.peer_id);
  json.begin('{')
      .field("number", call.number)
      .field("call", call.call)
      .field("direction", call.incoming ? "incoming" : "outgoing")
      .field("peer", call.peer != 0            ? Names::instance().name_of(call.peer)
                     : member != members.end() ? member->second
                                               : std::string())
      .field("peer_id", call.peer_id)
      .field("function", Names::instance().name_of(call.function))
      .field("type", type_name(call.type))
      .field("thread", call.thread)
      .field("begin_us", call.begin_us)
      .field("end_us", call.end_us)
      .field("bytes", call.bytes)
      .field("answer_bytes", call.answer_bytes)
      .field("timeout_ms", call.timeout_ms)
      .field("state", name_of(call.state))
      .field("error", log.error(call.error))
      .end('}');
}

}  // namespace

namespace {

// A text that one thread writes while others read it.
class SharedText {
 public:
  std::string get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return text_;
  }
  void set(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    text_ = text;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

// The process has one worker at a time, and its guard may be there before its recorder.
SharedText& guard_of_process() {
  static auto* const text = new SharedText;  // threads may read it while the process exits
  return *text;
}

}  // namespace

Recorder::Recorder(std::weak_ptr<torch::distributed::rpc::RpcAgent> agent, size_t capacity, const Server& server)
    : agent_(std::move(agent)),
      log_(std::make_shared<CallLog>(capacity)),
      server_(server),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      failed_calls_(std::make_shared<FailedCalls>()) {
  if (wake_ < 0) {
    throw std::system_error(errno, std::generic_category(), "the recorder gets no eventfd");
  }
}

Recorder::~Recorder() {
  close_descriptors();
}

void Recorder::start(const std::string& worker) {
  worker_ = worker;
  if (server_.listener >= 0) {
    if (!server_.dumps.empty()) {
      take_signal();
    }
    thread_ = std::thread([self = shared_from_this()] { self->serve(); });
  }
}

void Recorder::show(const std::string& worker, int rank, int world_size) {
  rank_ = rank;
  world_size_ = world_size;
  started_us_ = CallLog::now_us();
  start(worker);
}

void Recorder::join_group(const std::string& group_id) {
  const std::lock_guard<std::mutex> lock(start_mutex_);
  server_.group_id = group_id;
}

void Recorder::fail(const std::string& error) {
  const std::lock_guard<std::mutex> lock(start_mutex_);
  error_ = error;
}

namespace {

// Returns Python's number of the thread that holds the GIL; 0 if none does. Reads Python's data without the GIL,
// and may crash if a thread ends at the same time.
unsigned long gil_holder() {
#if PY_VERSION_HEX < 0x030c0000
  const PyThreadState* const holder = _PyThreadState_UncheckedGet();
  return holder == nullptr ? 0 : holder->thread_id;
#else
  PyThreadState* state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
  while (state != nullptr && !state->_status.active) {
    state = PyThreadState_Next(state);
  }
  return state == nullptr ? 0 : state->thread_id;
#endif
}

// Writes the line "GIL 0x..." with the number of a thread. Makes system calls only.
void write_holder(int file, unsigned long holder) {
  char line[] = "GIL 0x0000000000000000\n";
  for (size_t at = sizeof line - 3; holder != 0; holder >>= 4, --at) {
    line[at] = "0123456789abcdef"[holder & 0xf];
  }
  [[maybe_unused]] const ssize_t written = ::write(file, line, sizeof line - 1);
}

// Writes the stacks of all threads, and which thread holds the GIL. faulthandler reads the stacks without the GIL, and
// may crash if a thread runs Python at the same time. So this runs in a forked copy of this process: only the copy can
// crash. The program does not notice the copy, which sends no signal to its parent when it ends, and which ordinary
// waits for children do not find.
void dump_stacks(int file, int signal) {
  constexpr int kTries = 3;
  constexpr int kMostMilliseconds = 2000;
  for (int i = 0; i < kTries; ++i) {
    if (::ftruncate(file, 0) != 0 || ::lseek(file, 0, SEEK_SET) != 0) {
      return;
    }
    const long child = ::syscall(SYS_clone, 0, nullptr, nullptr, nullptr, nullptr);
    if (child == 0) {  // only system calls from here on
      for (const int fatal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
        struct sigaction plain{};
        plain.sa_handler = SIG_DFL;
        ::sigaction(fatal, &plain, nullptr);
      }
      ::prctl(PR_SET_DUMPABLE, 0);                                                  // no core file
      ::syscall(SYS_tgkill, ::syscall(SYS_getpid), ::syscall(SYS_gettid), signal);  // handled before this returns
      write_holder(file, gil_holder());
      ::_exit(0);
    }
    if (child < 0) {
      return;
    }
    int status = 0;
    int waited = 0;
    for (; ::waitpid(static_cast<pid_t>(child), &status, __WALL | WNOHANG) == 0; ++waited) {
      if (waited == kMostMilliseconds) {
        ::kill(static_cast<pid_t>(child), SIGKILL);
      }
      ::usleep(1000);
    }
    if (WIFEXITED(status)) {
      return;
    }
  }
}

}  // namespace

std::string Recorder::stacks() const {
  const std::lock_guard<std::mutex> lock(stacks_mutex_);
  if (server_.stack_file < 0) {
    return {};
  }
  dump_stacks(server_.stack_file, server_.stack_signal);
  std::string text;
  char piece[4096];
  for (off_t at = 0;;) {
    const ssize_t size = ::pread(server_.stack_file, piece, sizeof piece, at);
    if (size <= 0) {
      return text;
    }
    text.append(piece, static_cast<size_t>(size));
    at += size;
  }
}

void Recorder::take_signal() {
  struct sigaction ours{};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  if (::sigaction(SIGUSR1, nullptr, &before_) != 0 || (before_.sa_flags & SA_SIGINFO) != 0 ||
      before_.sa_handler != SIG_DFL) {
    return;  // the program has its own handler
  }
  signalled = wake_;
  takes_signal_ = ::sigaction(SIGUSR1, &ours, nullptr) == 0;
}

void Recorder::give_signal_back() {
  struct sigaction now{};
  if (std::exchange(takes_signal_, false) && ::sigaction(SIGUSR1, nullptr, &now) == 0 && now.sa_handler == on_signal) {
    ::sigaction(SIGUSR1, &before_, nullptr);
    signalled = -1;
  }
}

std::string Recorder::dump(const std::string& reason) const {
  const std::lock_guard<std::mutex> lock(dump_mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!last_dump_.empty() && now - dumped_ < kDumpPause) {
    return last_dump_;
  }
  last_dump_ = write_dump(reason);
  dumped_ = now;
  return last_dump_;
}

std::string Recorder::write_dump(const std::string& reason) const {
  const std::string text = state(Extent::kAll, reason);
  const std::string path = server_.dumps + "/" + server_.host + "-" + std::to_string(::getpid()) + "-" + worker_ + "-" +
                           std::to_string(dumps_written % kMostDumps + 1) + ".json";
  const std::string partial = path + ".partial";
  // Names of functions and workers are not for other users.
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  bool written = file >= 0;
  for (size_t at = 0; written && at < text.size();) {
    const ssize_t size = ::write(file, text.data() + at, text.size() - at);
    written = size > 0;
    at += written ? static_cast<size_t>(size) : 0;
  }
  if (file >= 0) {
    ::close(file);
  }
  if (!written || ::rename(partial.c_str(), path.c_str()) != 0) {
    throw std::system_error(errno, std::generic_category(), "the dump " + path + " cannot be written");
  }
  ++dumps_written;
  return path;
}

void describe_guard(const std::string& text) {
  guard_of_process().set(text);
}

std::string Recorder::state(Extent extent, const std::string& reason) const {
  const auto agent = agent_.lock();
  std::map<int, std::string> members;
  if (agent) {
    for (const auto& member : agent->getWorkerInfos()) {
      members[member.id_] = member.name_;
    }
  }
  const int64_t wants_gil_since = wants_gil_since_us_;
  std::string error;
  std::string group_id;
  {
    const std::lock_guard<std::mutex> lock(start_mutex_);
    error = error_;
    group_id = server_.group_id;
  }
  const char* const phase = started_us_ == 0 ? "running" : error.empty() ? "starting" : "failed";
  Json json;
  json.begin('{')
      .field("version", 4)
      .field("worker", worker_)
      .field("backend", server_.backend)
      .field("group", server_.group)
      .field("group_id", group_id)
      .field("host", server_.host)
      .field("pid", ::getpid())
      .field("time_us", CallLog::now_us())
      .field("reason", reason)
      .field("phase", phase)
      .field("rank", rank_)
      .field("world_size", world_size_)
      .field("started_us", started_us_)
      .field("error", error)
      .field("guard", guard_of_process().get())
      .field("gil_wait_us", wants_gil_since == 0 ? 0 : CallLog::now_us() - wants_gil_since)
      .field("calls", log_->calls());
  const CallLog::Look look = extent == Extent::kShort ? CallLog::Look{log_->in_flight(), {}} : log_->look();
  json.key("in_flight").begin('[');
  for (const RecordedCall& call : look.in_flight) {
    write_call(json, call, *log_, members);
  }
  json.end(']').key("recent").begin('[');
  const int64_t since = extent == Extent::kAll ? 0 : CallLog::now_us() - kLast;
  for (const RecordedCall& call : look.recent) {
    if (call.end_us >= since) {
      write_call(json, call, *log_, members);
    }
  }
  json.end(']').field("stacks", extent == Extent::kAll ? stacks() : std::string());
  json.key("members").begin('[');
  for (const auto& [id, name] : members) {
    json.begin('{').field("name", name).field("id", id).end('}');
  }
  json.end(']').key("metrics").begin('{');
  if (agent) {
    for (const auto& [name, value] : agent->getDebugInfo()) {
      json.field(name, value);
    }
  }
  json.end('}').key("held_rrefs").begin('{');
  for (const auto& [owner, count] : log_->held_rrefs()) {
    const std::string name = Names::instance().name_of(owner);
    if (count > 0 && name != worker_) {  // an RRef of this worker has no user here
      json.field(name, count);
    }
  }
  json.end('}').key("rrefs").begin('{');
  if (agent) {  // without one, torch cannot make its context
    for (const auto& [name, value] : torch::distributed::rpc::RRefContext::getInstance().getDebugInfo()) {
      json.field(name, value);
    }
  }
  return json.end('}').end('}').text();
}

std::unordered_map<std::string, std::string> Recorder::metrics() const {
  return {{"recorder.calls", std::to_string(log_->calls())},
          {"recorder.unrecorded", std::to_string(log_->unrecorded())}};
}

void Recorder::stop() {
  if (birthplace_.is_elsewhere()) {
    return;
  }
  give_signal_back();
  failed_calls_->stop();
  if (thread_.joinable()) {
    const uint64_t count = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &count, sizeof count);
    thread_.join();
    if (server_.dump_at_end) {
      contained("while writing a dump", [&] { write_dump("end"); });
    }
  }
  close_descriptors();  // torch may keep the agent, and with it this object, until the process ends
}

void Recorder::close_descriptors() {
  const std::lock_guard<std::mutex> lock(stacks_mutex_);
  for (int* const descriptor : {&server_.listener, &server_.stack_file, &wake_}) {
    if (*descriptor >= 0) {
      ::close(std::exchange(*descriptor, -1));
    }
  }
}

void Recorder::serve() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, server_.stack_signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  pollfd waited[] = {{server_.listener, POLLIN, 0}, {wake_, POLLIN, 0}};
  for (;;) {
    if (::poll(waited, 2, -1) < 0 && errno != EINTR) {
      return;
    }
    if (waited[1].revents != 0) {
      uint64_t what = 0;
      [[maybe_unused]] const ssize_t size = ::read(wake_, &what, sizeof what);
      if (what % kSignal != 0) {
        return;  // stop()
      }
      contained("while writing a dump", [&] { dump("signal"); });
    }
    if (waited[0].revents == 0) {
      continue;
    }
    const int connection = ::accept4(server_.listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection >= 0) {
      contained("in the recorder", [&] { answer(connection); });
      ::close(connection);
    }
  }
}

void Recorder::answer(int connection) const {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != ::geteuid() && peer.uid != 0)) {
    return;
  }
  const timeval limit{kReaderTimeout, 0};
  ::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  char wanted = 0;
  if (::recv(connection, &wanted, 1, 0) != 1) {
    return;
  }
  const std::string text = state(wanted == 'a' ? Extent::kAll : wanted == 'l' ? Extent::kLast : Extent::kShort);
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t now = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) {
      return;
    }
    sent += static_cast<size_t>(now);
  }
}

void bind_recorder(pybind11::module_& module) {
  namespace py = pybind11;
  module.def("describe_guard", &describe_guard, py::arg("text"));
  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder", py::module_local())
      .def(py::init([](const std::shared_ptr<torch::distributed::rpc::RpcAgent>& agent, size_t capacity, int listener,
                       int stack_file, int stack_signal, const std::string& backend, const std::string& group,
                       const std::string& group_id, const std::string& host, const std::string& dumps,
                       bool dump_at_end) {
             return std::make_shared<Recorder>(agent, capacity,
                                               Recorder::Server{listener, stack_file, stack_signal, backend, group,
                                                                group_id, host, dumps, dump_at_end});
           }),
           py::kw_only(), py::arg("agent"), py::arg("capacity"), py::arg("listener"), py::arg("stack_file"),
           py::arg("stack_signal"), py::arg("backend"), py::arg("group"), py::arg("group_id"), py::arg("host"),
           py::arg("dumps"), py::arg("dump_at_end"))
      .def("dump", &Recorder::dump, py::arg("reason"), py::call_guard<py::gil_scoped_release>())
      .def(
          "wait_for_failures",
          [](Recorder& self, double seconds) {
            self.set_wants_gil(false);
            const py::gil_scoped_release release;
            auto callees = self.failed_calls()->wait(seconds);
            self.set_wants_gil(true);
            return callees;
          },
          py::arg("seconds"))
      .def("begin_explanation", [](Recorder& self) { self.set_wants_gil(false); })
      .def(
          "explain", [](const Recorder& self, const std::string& text) { self.failed_calls()->explain(text); },
          py::arg("text"), py::call_guard<py::gil_scoped_release>())
      .def("show", &Recorder::show, py::arg("worker"), py::arg("rank"), py::arg("world_size"))
      .def("join_group", &Recorder::join_group, py::arg("group_id"))
      .def("fail", &Recorder::fail, py::arg("error"))
      .def("stop", &Recorder::stop, py::call_guard<py::gil_scoped_release>());
}

}  // namespace rpc_backends
