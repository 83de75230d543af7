// Measures the transport between two processes, libzmq alone, or a bare socket: one figure for each run.
//
//   bench LIBZMQ WAY MEDIUM SECURITY WHAT [THREADS [SIZE]]
//
//   WAY       ours | raw (libzmq: a DEALER and a ROUTER, with poll) | socket (without libzmq)
//   MEDIUM    tcp | ipc
//   SECURITY  null | curve
//   WHAT      latency (us of a round trip of 200 bytes) | rate (messages/s with 1000 in flight) |
//             bulk (GB/s of messages of 64 MiB, each answered with 8 bytes) | bulk2 (the same, two in flight)
//
// run.py builds this program and runs all cases in turns.
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/un.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "zeromq_transport.h"

using namespace rpc_backends;
using namespace rpc_backends::zeromq;

namespace {

struct Task {
  std::string library, way, medium, security, what;
  int threads = 2;
  size_t size = 0;

  bool is_bulk() const { return what.rfind("bulk", 0) == 0; }
  size_t in_flight() const { return what == "rate" ? 1000 : what == "bulk2" ? 2 : 1; }
  size_t rounds() const {
    if (is_bulk()) {  // takes about a second
      return std::clamp<size_t>((security == "curve" ? 400 << 20 : 2000 << 20) / size, 5, 5000);
    }
    return what == "rate" ? 200000 : 20000;
  }
};

struct Keys {
  char pub[41] = "", secret[41] = "";
};

double now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

Part make_part(size_t size) {
  void* const memory = std::aligned_alloc(64, (size + 63) / 64 * 64);
  std::memset(memory, 1, size);
  return {memory, size, std::shared_ptr<void>(memory, std::free)};
}

// Uses a part as an agent does: as a tensor's memory if it is aligned, otherwise after a copy.
void use(const Part& part) {
  if (part.size > 1 << 16 && reinterpret_cast<uintptr_t>(part.data) % 16 != 0) {
    const std::unique_ptr<char[]> copy(new char[part.size]);
    std::memcpy(copy.get(), part.data, part.size);
    asm volatile("" : : "r"(copy.get()) : "memory");
  }
}

void report(const Task& task, double seconds, size_t rounds) {
  if (task.is_bulk()) {
    std::printf("%.3f\n", static_cast<double>(task.size) * rounds / seconds / 1e9);
  } else if (task.what == "rate") {
    std::printf("%.0f\n", rounds / seconds);
  } else {
    std::printf("%.2f\n", seconds / rounds * 1e6);
  }
}

void pass_on(int fd, const void* data, size_t size) {
  if (::write(fd, data, size) != static_cast<ssize_t>(size)) {
    std::abort();
  }
}

void take_over(int fd, void* data, size_t size) {
  if (::read(fd, data, size) != static_cast<ssize_t>(size)) {
    std::abort();
  }
}

struct Address {
  char text[128] = "";
  Keys keys;
};

std::string where(const Task& task, const char* role) {
  return task.medium == "tcp" ? "tcp://127.0.0.1:*" : "ipc:///tmp/bench-" + std::to_string(getpid()) + "-" + role;
}

// --- ours -------------------------------------------------------------------------------------------

Keys make_keys(const Task& task) {
  Keys keys;
  if (task.security == "curve") {
    void* const handle = dlopen(task.library.c_str(), RTLD_NOW);
    reinterpret_cast<int (*)(char*, char*)>(dlsym(handle, "zmq_curve_keypair"))(keys.pub, keys.secret);
  }
  return keys;
}

std::unique_ptr<ZeroMQTransport> open_ours(const Task& task, int self, int from, int to) {
  Address mine, theirs;
  mine.keys = make_keys(task);
  Settings settings;
  settings.public_key = mine.keys.pub;
  settings.secret_key = mine.keys.secret;
  settings.max_message = uint64_t{1} << 40;
  settings.heartbeat = 2;
  settings.heartbeat_timeout = settings.handshake_timeout = 10;
  auto transport = std::make_unique<ZeroMQTransport>(settings, nullptr, nullptr);
  const std::string bound = transport->bind({where(task, self == 0 ? "a" : "b")})[0];
  std::strncpy(mine.text, bound.c_str(), sizeof mine.text - 1);
  pass_on(to, &mine, sizeof mine);
  take_over(from, &theirs, sizeof theirs);
  transport->start(self);
  transport->learn_endpoint(1 - self, theirs.text, theirs.keys.pub);
  return transport;
}

void serve_ours(const Task& task, int from, int to) {
  auto transport = open_ours(task, 1, from, to);
  std::vector<std::thread> threads;
  for (int i = 0; i < task.threads; ++i) {
    threads.emplace_back([&] {
      Event event;
      const Part word = make_part(8);
      while (transport->receive(event) && event.kind == Event::Kind::kMessage) {
        use(event.parts[0]);
        transport->send(0, task.is_bulk() ? Parts{word} : std::move(event.parts), true);
        event.parts.clear();
      }
      transport->close(0);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

void call_ours(const Task& task, int from, int to) {
  auto transport = open_ours(task, 0, from, to);
  const Part part = make_part(task.size);
  const auto one_thread = [&](size_t rounds) {
    Event event;
    for (size_t i = 0; i < rounds; ++i) {
      transport->send(1, {part}, false);
      transport->receive(event);
    }
  };
  one_thread(task.is_bulk() ? 3 : 1000);
  const double begin = now();
  if (task.in_flight() == 1) {
    one_thread(task.rounds());
    report(task, now() - begin, task.rounds());
    return;
  }
  std::atomic<size_t> sent{0}, received{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < task.threads; ++i) {
    threads.emplace_back([&] {
      Event event;
      while (transport->receive(event)) {
        if (sent.fetch_add(1) < task.rounds()) {
          transport->send(1, {part}, false);
        }
        if (received.fetch_add(1) + 1 == task.rounds()) {
          report(task, now() - begin, task.rounds());
          std::fflush(stdout);
          std::_Exit(0);
        }
      }
    });
  }
  for (size_t i = 0; i < task.in_flight(); ++i) {
    ++sent;
    transport->send(1, {part}, false);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

// --- libzmq alone -----------------------------------------------------------------------------------

void wait_for(int fd) {
  pollfd wait{fd, POLLIN, 0};
  ::poll(&wait, 1, -1);
}

void receive(Socket& socket, int fd, Frame& frame) {
  while (!socket.receive(frame)) {
    wait_for(fd);
  }
}

void serve_raw(const Task& task, int /*from*/, int to) {
  Context context(1);
  Socket socket(context, socket_type::kRouter);
  Address mine;
  mine.keys = make_keys(task);
  if (task.security == "curve") {
    socket.set(option::kCurveServer, 1);
    socket.set(option::kCurveSecretKey, std::string(mine.keys.secret));
  }
  socket.bind(where(task, "b"));
  std::strncpy(mine.text, socket.last_endpoint().c_str(), sizeof mine.text - 1);
  pass_on(to, &mine, sizeof mine);
  const int fd = socket.fd();
  Frame route, frame;
  for (;;) {
    receive(socket, fd, route);
    receive(socket, fd, frame);
    if (task.is_bulk()) {
      frame = Frame("12345678", 8);
    }
    socket.send(route, true);
    socket.send(frame, false);
  }
}

void call_raw(const Task& task, int from, int /*to*/) {
  Context context(1);
  Socket socket(context, socket_type::kDealer);
  Address theirs;
  take_over(from, &theirs, sizeof theirs);
  if (task.security == "curve") {
    const Keys keys = make_keys(task);
    socket.set(option::kCurvePublicKey, std::string(keys.pub));
    socket.set(option::kCurveSecretKey, std::string(keys.secret));
    socket.set(option::kCurveServerKey, std::string(theirs.keys.pub));
  }
  socket.connect(theirs.text);
  const Part part = make_part(task.size);
  const int fd = socket.fd();
  size_t sent = 0;
  const auto send = [&] {
    Frame frame = part.size > 4096 ? Frame(part) : Frame(part.data, part.size);
    socket.send(frame, false);
    ++sent;
  };
  Frame answer;
  const auto run = [&](size_t rounds) {
    sent = 0;
    while (sent < std::min(rounds, task.in_flight())) {
      send();
    }
    for (size_t received = 0; received < rounds; ++received) {
      receive(socket, fd, answer);
      if (sent < rounds) {
        send();
      }
    }
  };
  run(task.is_bulk() ? 3 : 1000);
  const double begin = now();
  run(task.rounds());
  report(task, now() - begin, task.rounds());
}

// --- a socket alone ---------------------------------------------------------------------------------

void all(int fd, char* data, size_t size, bool out) {
  while (size > 0) {
    const ssize_t done = out ? ::write(fd, data, size) : ::read(fd, data, size);
    if (done <= 0) {
      std::exit(0);
    }
    data += done;
    size -= done;
  }
}

void serve_socket(const Task& task, int /*from*/, int to) {
  const bool tcp = task.medium == "tcp";
  const int listener = ::socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
  sockaddr_storage address{};
  address.ss_family = tcp ? AF_INET : AF_UNIX;
  if (tcp) {
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  socklen_t length = tcp ? sizeof(sockaddr_in) : sizeof(sa_family_t);
  ::bind(listener, reinterpret_cast<sockaddr*>(&address), length);
  ::listen(listener, 1);
  length = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  pass_on(to, &length, sizeof length);
  pass_on(to, &address, sizeof address);
  const int fd = ::accept(listener, nullptr, nullptr);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  for (;;) {
    const std::unique_ptr<char[]> data(new char[task.size]);  // new memory each time, as for a received tensor
    all(fd, data.get(), task.size, false);
    all(fd, data.get(), task.is_bulk() ? 8 : task.size, true);
  }
}

void call_socket(const Task& task, int from, int /*to*/) {
  sockaddr_storage address{};
  socklen_t length = 0;
  take_over(from, &length, sizeof length);
  take_over(from, &address, sizeof address);
  const int fd = ::socket(address.ss_family, SOCK_STREAM, 0);
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  ::connect(fd, reinterpret_cast<sockaddr*>(&address), length);
  const Part part = make_part(task.size);
  char* const data = static_cast<char*>(const_cast<void*>(part.data));
  const auto run = [&](size_t rounds) {
    for (size_t i = 0; i < rounds; ++i) {
      all(fd, data, task.size, true);
      all(fd, data, task.is_bulk() ? 8 : task.size, false);
    }
  };
  run(task.is_bulk() ? 3 : 1000);
  const double begin = now();
  run(task.rounds());
  report(task, now() - begin, task.rounds());
}

}  // namespace

int main(int count, char** words) {
  Task task;
  if (count < 6) {
    std::fprintf(stderr, "usage: bench LIBZMQ WAY MEDIUM SECURITY WHAT [THREADS [SIZE]]; see bench.cpp\n");
    return 2;
  }
  task.library = words[1];
  task.way = words[2];
  task.medium = words[3];
  task.security = words[4];
  task.what = words[5];
  task.threads = count > 6 ? std::atoi(words[6]) : 2;
  task.size = count > 7 ? std::strtoull(words[7], nullptr, 10) : task.is_bulk() ? 64 << 20 : 200;
  int there[2], back[2];
  if (::pipe(there) != 0 || ::pipe(back) != 0) {
    return 1;
  }
  const pid_t server = fork();
  load_library({task.library});
  const auto serve = task.way == "ours" ? serve_ours : task.way == "raw" ? serve_raw : serve_socket;
  const auto call = task.way == "ours" ? call_ours : task.way == "raw" ? call_raw : call_socket;
  if (server == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(task, there[0], back[1]);
    std::_Exit(0);
  }
  call(task, back[0], there[1]);
  std::fflush(stdout);
  std::_Exit(0);  // the server process ends with this one (PR_SET_PDEATHSIG)
}
