// The engine of GUARDED_TCP. Each caller has a connection of its own to the callee, which begins with a proof and then
// carries its requests, and their replies the other way. Each connection has a thread that reads and one that writes.
#include <deque>
#include <list>
#include <map>

#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/gated_transport.h"
#include "rpc_backends_agents/python.h"
#include "rpc_backends_agents/stream.h"

namespace py = pybind11;
using namespace rpc_backends;

namespace {

constexpr int kHandshakeSeconds = 10;
constexpr int kPending = -2;  // the owner of a proof is being looked up
using Lock = std::unique_lock<std::mutex>;

struct Peer {
  sockaddr_in address{};
  std::string ours;
};

struct Link {
  Link(int fd, int peer, bool peer_calls) : socket(fd), peer(peer), peer_calls(peer_calls) {}

  void shut() const { ::shutdown(socket.get(), SHUT_RDWR); }

  const Fd socket;
  int peer;               // -1 until the peer has proved itself
  const bool peer_calls;  // else this worker calls
  std::deque<Parts> queue;
  std::condition_variable changed;
  bool broken = false, finishing = false, ended = false;
  std::thread thread;
};

class TcpEngine final : public GatedTransport::Engine {
 public:
  TcpEngine(std::string host, uint64_t max_message, const py::object& whose, const py::object& refused)
      : host_(std::move(host)),
        max_message_(max_message),
        callbacks_("rpc-tcp-calls", unknown_key_callback(whose), refused_callback(refused)) {}

  int start() {
    listener_.emplace(stream::open_socket());
    const int port = stream::listen_on(listener_->get(), host_);
    acceptor_ = start_thread("rpc-tcp-accept", [this] { accept_all(); });
    return port;
  }

  void learn(int peer, const std::string& host, int port, const std::string& ours) {
    const Lock lock(mutex_);
    peers_[peer] = {stream::address_of(host, port), ours};
  }

  void forget(int peer) override {
    const Lock lock(mutex_);
    peers_.erase(peer);
    shut_links(peer);
  }

  void reject(int peer, std::string_view /*reason*/) override {
    const Lock lock(mutex_);
    shut_links(peer);
  }

  void send(int peer, Parts parts, bool reply) override {
    const Lock lock(mutex_);
    auto link_of_peer = current_.find({peer, reply});
    if (link_of_peer == current_.end()) {
      if (reply || peers_.count(peer) == 0) {
        throw TransportError(reply ? "the worker that waits for this reply has disconnected"
                                   : "the worker is not known");
      }
      const auto link = add_link(stream::open_socket(), peer, false);
      link_of_peer = current_.emplace(std::make_pair(peer, false), link).first;
    }
    if (link_of_peer->second->broken) {
      throw TransportError("the connection to the worker is lost");
    }
    link_of_peer->second->queue.push_back(std::move(parts));
    link_of_peer->second->changed.notify_all();
  }

  Received receive(Event& event, GatedTransport::Clock::time_point deadline) override {
    return events_.pop(event, deadline);
  }

  void stop_receiving() override { events_.close(); }

  void close(double linger) override {
    callbacks_.stop();
    std::list<std::shared_ptr<Link>> links;
    Lock lock(mutex_);
    closing_ = true;
    if (listener_) {
      ::shutdown(listener_->get(), SHUT_RDWR);
    }
    for (const auto& link : links_) {
      link->finishing = true;
      link->changed.notify_all();
      if (link->peer < 0) {
        link->shut();
      }
    }
    ended_.wait_for(lock, std::chrono::duration<double>(linger), [this] {
      return std::all_of(links_.begin(), links_.end(), [](const auto& link) { return link->ended; });
    });
    shut_links(-1);
    links.swap(links_);
    lock.unlock();
    if (acceptor_.joinable()) {
      acceptor_.join();
    }
    for (const auto& link : links) {
      link->thread.join();
    }
  }

 private:
  // With the mutex. -1: all links.
  void shut_links(int peer) {
    for (const auto& link : links_) {
      if (peer < 0 || link->peer == peer) {
        link->shut();
      }
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC);
      const Lock lock(mutex_);
      if (closing_) {
        fd >= 0 ? ::close(fd) : 0;
        return;
      }
      try {
        add_link(fd, -1, true);
      } catch (const std::exception&) {  // too many files or threads: the peer tries again
        ::usleep(10'000);
      }
    }
  }

  // With the mutex. Takes over `fd`.
  std::shared_ptr<Link> add_link(int fd, int peer, bool peer_calls) {
    links_.remove_if([](const auto& link) { return link->ended && (link->thread.join(), true); });
    const auto link = std::make_shared<Link>(fd, peer, peer_calls);
    link->thread = start_thread("rpc-tcp-read", [this, link] { run(link); });
    links_.push_back(link);
    return link;
  }

  void run(const std::shared_ptr<Link>& link) {
    const int fd = link->socket.get();
    std::thread writer;
    std::string reason;
    try {
      stream::send_without_delay(fd);
      link->peer_calls ? take_greeting(link) : greet(*link);
      writer = start_thread("rpc-tcp-write", [this, link] { write_all(*link); });
      for (;;) {
        events_.push({Event::Kind::kMessage, link->peer, stream::receive_message(fd, max_message_), {}});
      }
    } catch (const std::exception& error) {
      reason = error.what();
    }
    {
      const Lock lock(mutex_);  // from here on send() throws, so no message enters the queue after the loss
      link->broken = true;
      link->changed.notify_all();
      link->shut();
    }
    if (!link->peer_calls) {
      events_.push({Event::Kind::kLost, link->peer, {}, reason});
    } else if (link->peer < 0 && reason != "the worker has closed the connection") {
      callbacks_.report("a process has connected: " + reason);
    }
    std::deque<Parts> unsent;  // released without the mutex, because that may wait for Python
    {
      const Lock lock(mutex_);
      const auto current = current_.find({link->peer, link->peer_calls});
      if (current != current_.end() && current->second == link) {
        current_.erase(current);
      }
      unsent.swap(link->queue);
    }
    if (!link->peer_calls) {
      events_.push({Event::Kind::kFound, link->peer, {}, {}});
    }
    if (writer.joinable()) {
      writer.join();
    }
    unsent.clear();
    const Lock lock(mutex_);
    link->ended = true;
    ended_.notify_all();
  }

  void greet(const Link& link) {
    Lock lock(mutex_);
    Peer peer = peers_[link.peer];
    lock.unlock();
    stream::connect_to(link.socket.get(), peer.address);
    stream::send_all(link.socket.get(), peer.ours.data(), peer.ours.size());
  }

  void take_greeting(const std::shared_ptr<Link>& link) {
    std::string proof(32, 0);
    stream::limit_reads(link->socket.get(), kHandshakeSeconds);
    stream::receive_all(link->socket.get(), proof.data(), proof.size());
    stream::limit_reads(link->socket.get(), 0);
    const auto owner = std::make_shared<int>(kPending);
    const bool asked = callbacks_.look_up(proof, [this, link, owner](std::optional<int> peer) {
      const Lock lock(mutex_);
      *owner = peer.value_or(-1);
      link->changed.notify_all();
    });
    Lock lock(mutex_);
    link->changed.wait(lock, [&] { return !asked || *owner != kPending || link->finishing; });
    if (*owner < 0) {
      throw TransportError("it does not belong to this group");
    }
    link->peer = *owner;
    current_[{*owner, true}] = link;
  }

  void write_all(Link& link) {
    for (;;) {
      Parts parts;
      {
        Lock lock(mutex_);
        link.changed.wait(lock, [&] { return !link.queue.empty() || link.finishing || link.broken; });
        if (link.broken || link.queue.empty()) {
          ::shutdown(link.socket.get(), SHUT_WR);
          return;
        }
        parts = std::move(link.queue.front());
        link.queue.pop_front();
      }
      try {
        stream::send_message(link.socket.get(), parts);
      } catch (const std::exception&) {  // the reading thread sees the end, and reports it
        link.shut();
        return;
      }
    }
  }

  const std::string host_;
  const uint64_t max_message_;
  CallbackThread callbacks_;
  std::optional<Fd> listener_;
  std::thread acceptor_;
  EventQueue events_;
  std::mutex mutex_;  // protects all below, and what is in links
  std::condition_variable ended_;
  bool closing_ = false;
  std::map<int, Peer> peers_;
  std::map<std::pair<int, bool>, std::shared_ptr<Link>> current_;  // by peer and peer_calls: where send() sends
  std::list<std::shared_ptr<Link>> links_;                         // all whose thread is not joined
};

class TcpTransport : public GatedTransport {
 public:
  TcpTransport(const std::string& host, uint64_t max_message, const py::object& whose, const py::object& refused) {
    set_engine(std::make_unique<TcpEngine>(host, max_message, whose, refused));
  }
  ~TcpTransport() override { close(0); }

  template <typename Task>
  auto with_engine(Task task) {
    const py::gil_scoped_release release;
    const Use use(*this);
    return task(static_cast<TcpEngine&>(engine()));
  }

  // The Python around this transport calls start() and learn() of the engine.
  Text listen(int, std::string_view) override { throw TransportError("use start()"); }
  void learn(int, std::string_view, std::string_view) override { throw TransportError("use learn() with proofs"); }
};

using Bound = ClosedAtExit<TcpTransport>;
}  // namespace

PYBIND11_MODULE(_guarded_tcp, module) {
  bind_transport<TcpTransport>(module)
      .def(py::init<std::string, uint64_t, py::object, py::object>(), py::kw_only(), py::arg("host"),
           py::arg("max_message"), py::arg("on_unknown_key"), py::arg("on_refused"))
      .def("start", [](Bound& self, int) { return self.with_engine([](TcpEngine& engine) { return engine.start(); }); })
      .def("learn", [](Bound& self, int peer, const std::string& host, int port, const std::string& ours) {
        self.with_engine([&](TcpEngine& engine) { engine.learn(peer, host, port, ours); });
      });
}
