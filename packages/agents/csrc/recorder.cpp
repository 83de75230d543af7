#include "recorder.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "capsule.h"
#include "json.h"
#include "log.h"

namespace rpc_backends {

namespace {

// Seconds that a reader of the socket may take for one step.
constexpr time_t kReaderTimeout = 5;

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Copies a text; one that is too long keeps its begin.
template <size_t N>
void put(char (&to)[N], std::string_view text) {
  const size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = 0;
}

// Copies a name; one that is too long keeps its end, which says more.
template <size_t N>
void put_end(char (&to)[N], std::string_view text) {
  put(to, text.size() < N ? text : text.substr(text.size() - (N - 1)));
}

const char* name_of(RecordedCall::State state) {
  switch (state) {
    case RecordedCall::State::kInFlight:
      return "in flight";
    case RecordedCall::State::kAnswered:
      return "answered";
    case RecordedCall::State::kFailed:
      return "failed";
    case RecordedCall::State::kTimedOut:
      return "timed out";
    case RecordedCall::State::kShutDown:
      return "shut down";
    default:
      return "dropped";
  }
}

RecordedCall::State state_of(const End& end) {
  switch (end.kind) {
    case End::Kind::kAnswer:
      return RecordedCall::State::kAnswered;
    case End::Kind::kTimeout:
      return RecordedCall::State::kTimedOut;
    case End::Kind::kShutdown:
      return RecordedCall::State::kShutDown;
    case End::Kind::kDropped:
      return RecordedCall::State::kDropped;
    default:
      return end.text.find("RPC ran for more than set timeout") != std::string::npos ? RecordedCall::State::kTimedOut
                                                                                     : RecordedCall::State::kFailed;
  }
}

void write_call(Json& json, const RecordedCall& call) {
  json.begin('{')
      .field("number", call.number)
      .field("caller_number", call.caller_number)
      .field("direction", call.incoming ? "incoming" : "outgoing")
      .field("peer", call.peer)
      .field("peer_id", call.peer_id)
      .field("function", call.function)
      .field("type", type_name(call.type))
      .field("thread", call.thread)
      .field("begin_us", call.begin_us)
      .field("end_us", call.end_us)
      .field("bytes", call.bytes)
      .field("answer_bytes", call.answer_bytes)
      .field("timeout_ms", call.timeout_ms)
      .field("state", name_of(call.state))
      .field("error", call.error)
      .end('}');
}

}  // namespace

// Sees the end of one call.
class Recorder::Watch final : public Observer {
 public:
  Watch(std::shared_ptr<Recorder> recorder, const RecordedCall& call, Place* place)
      : recorder_(std::move(recorder)), call_(call), place_(place) {}

  bool wants_answers() const noexcept override { return false; }

  void on_end(const End& end) override {
    call_.answer_bytes = end.bytes;
    call_.end_us = now_us();
    call_.state = state_of(end);
    put(call_.error, end.text);
    recorder_->ended(call_, place_);
  }

 private:
  const std::shared_ptr<Recorder> recorder_;
  RecordedCall call_;
  Place* const place_;
};

Recorder::Recorder(std::weak_ptr<torch::distributed::rpc::RpcAgent> agent, size_t capacity, const Server& server)
    : agent_(std::move(agent)),
      server_(server),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      recent_(std::max<size_t>(capacity, 1)) {
  if (wake_ < 0) {
    throw std::system_error(errno, std::generic_category(), "the recorder gets no eventfd");
  }
}

Recorder::~Recorder() {
  close_descriptors();
  for (auto& chunk : chunks_) {
    delete[] chunk.load();
  }
}

void Recorder::on_start(const AgentInfo& agent) {
  worker_ = agent.worker;
  if (server_.listener >= 0) {
    thread_ = std::thread([self = shared_from_this()] { self->serve(); });
  }
}

Recorder::Place* Recorder::take_place() {
  static thread_local size_t last = 0;  // where this thread found the last one
  for (size_t chunk = 0; chunk < kChunks; ++chunk) {
    Place* places = chunks_[chunk].load(std::memory_order_acquire);
    if (places == nullptr) {
      const std::lock_guard<std::mutex> lock(grow_mutex_);
      places = chunks_[chunk].load(std::memory_order_acquire);
      if (places == nullptr) {
        places = new Place[kChunk];
        chunks_[chunk].store(places, std::memory_order_release);
      }
    }
    for (size_t i = 0; i < kChunk; ++i) {
      const size_t at = (last + i) % kChunk;
      bool free = false;
      if (!places[at].taken.load(std::memory_order_relaxed) &&
          places[at].taken.compare_exchange_strong(free, true, std::memory_order_acquire)) {
        last = at;
        return &places[at];
      }
    }
  }
  return nullptr;
}

void Recorder::on_request(RequestPtr request) {
  const RequestHead& head = request->head();
  RecordedCall call;
  call.number = ++number_;
  call.incoming = head.direction() == Direction::kIncoming;
  call.thread = static_cast<uint64_t>(::pthread_self());
  call.begin_us = now_us();
  call.bytes = head.payload_bytes() + head.tensor_bytes();
  call.timeout_ms = head.timeout().count();
  call.peer_id = head.peer_id();
  call.type = head.type();
  put(call.peer, head.peer());
  put_end(call.function, head.function());
  if (call.incoming) {
    const std::string_view context = request->context();
    if (context.size() == sizeof(call.caller_number)) {
      std::memcpy(&call.caller_number, context.data(), sizeof(call.caller_number));
    }
  } else {
    request->attach({reinterpret_cast<const char*>(&call.number), sizeof(call.number)});
  }
  Place* const place = take_place();
  if (place == nullptr) {
    ++unrecorded_;
  } else {
    place->call.write(call);
    request->observe(std::make_shared<Watch>(shared_from_this(), call, place));
  }
  request->pass();
}

void Recorder::ended(const RecordedCall& call, Place* place) {
  place->call.write(call);  // so that nobody takes it for one in flight
  place->taken.store(false, std::memory_order_release);
  recent_[ended_++ % recent_.size()].write(call);
}

std::vector<RecordedCall> Recorder::in_flight() const {
  std::vector<RecordedCall> found;
  for (const auto& chunk : chunks_) {
    const Place* places = chunk.load(std::memory_order_acquire);
    for (size_t i = 0; places != nullptr && i < kChunk; ++i) {
      if (!places[i].taken.load(std::memory_order_acquire)) {
        continue;
      }
      const auto call = places[i].call.read();
      if (call && call->state == RecordedCall::State::kInFlight) {
        found.push_back(*call);
      }
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  return found;
}

std::vector<RecordedCall> Recorder::recent() const {
  std::vector<RecordedCall> found;
  for (const auto& cell : recent_) {
    if (const auto call = cell.read()) {
      found.push_back(*call);
    }
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.end_us < b.end_us; });
  return found;
}

std::string Recorder::stacks() const {
  const std::lock_guard<std::mutex> lock(stacks_mutex_);
  if (server_.stack_file < 0) {
    return {};
  }
  if (::ftruncate(server_.stack_file, 0) != 0 || ::lseek(server_.stack_file, 0, SEEK_SET) != 0) {
    return {};
  }
  ::pthread_kill(::pthread_self(), server_.stack_signal);  // handled before this returns
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

std::string Recorder::state(bool all) const {
  Json json;
  json.begin('{')
      .field("version", 1)
      .field("worker", worker_)
      .field("backend", server_.backend)
      .field("group", server_.group)
      .field("pid", ::getpid())
      .field("time_us", now_us());
  json.key("in_flight").begin('[');
  for (const RecordedCall& call : in_flight()) {
    write_call(json, call);
  }
  json.end(']').key("recent").begin('[');
  if (all) {
    for (const RecordedCall& call : recent()) {
      write_call(json, call);
    }
  }
  json.end(']').field("stacks", stacks());
  json.key("members").begin('[');
  const auto agent = agent_.lock();
  if (agent) {
    for (const auto& member : agent->getWorkerInfos()) {
      json.begin('{').field("name", member.name_).field("id", member.id_).end('}');
    }
  }
  json.end(']').key("metrics").begin('{');
  if (agent) {
    for (const auto& [name, value] : agent->getDebugInfo()) {
      json.field(name, value);
    }
  }
  json.end('}').key("rrefs").begin('{');
  for (const auto& [name, value] : torch::distributed::rpc::RRefContext::getInstance().getDebugInfo()) {
    json.field(name, value);
  }
  return json.end('}').end('}').text();
}

std::map<std::string, std::string> Recorder::metrics() const {
  return {{"calls", std::to_string(number_)}, {"unrecorded", std::to_string(unrecorded_)}};
}

void Recorder::on_stop() {
  if (birthplace_.is_elsewhere()) {
    return;
  }
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
    thread_.join();
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
      return;
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
  const std::string text = state(wanted == 'a');
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
  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder", py::module_local())
      .def(py::init([](const std::shared_ptr<torch::distributed::rpc::RpcAgent>& agent, size_t capacity, int listener,
                       int stack_file, int stack_signal, const std::string& backend, const std::string& group) {
             return std::make_shared<Recorder>(agent, capacity,
                                               Recorder::Server{listener, stack_file, stack_signal, backend, group});
           }),
           py::kw_only(), py::arg("agent"), py::arg("capacity"), py::arg("listener"), py::arg("stack_file"),
           py::arg("stack_signal"), py::arg("backend"), py::arg("group"))
      .def("state", &Recorder::state, py::arg("all"), py::call_guard<py::gil_scoped_release>())
      .def("stop", &Recorder::on_stop, py::call_guard<py::gil_scoped_release>())
      .def("__rpc_interceptor__", [](const std::shared_ptr<Recorder>& self) {
        return give_capsule<Interceptor>(self, kInterceptorCapsule);
      });
}

}  // namespace rpc_backends
