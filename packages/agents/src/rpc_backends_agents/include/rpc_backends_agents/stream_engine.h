// An engine over blocking stream sockets; a subclass listens, and says how a connection begins.
//
// Each caller has a connection of its own to the callee. It begins with a key of the caller, and then carries its
// requests, and their replies the other way. Each connection has a thread that reads and one that writes.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "rpc_backends_agents/callback_thread.h"
#include "rpc_backends_agents/fd.h"
#include "rpc_backends_agents/gated_transport.h"
#include "rpc_backends_agents/stream.h"
#include "rpc_backends_agents/threads.h"

namespace rpc_backends {

class StreamEngine : public GatedTransport::Engine {
 public:
  // `max_message`: the bytes of the longest message that a peer may send.
  StreamEngine(uint64_t max_message, CallbackThread::OnUnknownKey on_unknown_key, CallbackThread::OnRefused on_refused)
      : max_message_(max_message), callbacks_("rpc-callbacks", std::move(on_unknown_key), std::move(on_refused)) {}

  // Stores how a peer is reached, and the key with which this worker greets it.
  void learn(int peer, const stream::Address& address, std::string key) {
    const Lock lock(mutex_);
    peers_[peer] = {address, std::move(key)};
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
    auto current = current_.find({peer, reply});
    if (current == current_.end()) {
      if (reply) {
        throw TransportError("the worker that waits for this reply has disconnected");
      }
      const auto known = peers_.find(peer);
      if (known == peers_.end()) {
        throw TransportError("the worker is not known");
      }
      const auto link = add_link(stream::open_socket(known->second.address), peer, false);
      current = current_.emplace(std::make_pair(peer, false), link).first;
    }
    Link& link = *current->second;
    if (link.broken) {
      throw TransportError("the connection to the worker is lost");
    }
    link.queue.push_back(std::move(parts));
    link.changed.notify_all();
  }

  Received receive(Event& event, GatedTransport::Clock::time_point deadline) override {
    return events_.pop(event, deadline);
  }

  void stop_receiving() override { events_.close(); }

  void close(double linger) override {
    callbacks_.stop();
    std::list<std::shared_ptr<Link>> links;
    {
      Lock lock(mutex_);
      closing_ = true;
      if (listener_) {
        ::shutdown(listener_->get(), SHUT_RDWR);  // ends accept()
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
      for (const auto& link : links_) {
        link->shut();
      }
      links.swap(links_);
    }
    if (acceptor_.joinable()) {
      acceptor_.join();
    }
    for (const auto& link : links) {
      link->thread.join();
    }
  }

  Metrics metrics() const override {
    const Lock lock(mutex_);
    return {{"connections", std::to_string(links_.size())}};
  }

 protected:
  // Accepts connections from now on.
  void accept_on(std::unique_ptr<Fd> listener) {
    listener_ = std::move(listener);
    acceptor_ = start_thread("rpc-accept", [this] { accept_all(); });
  }

  // These run on the thread of a connection, which may wait. What they throw ends the connection.

  // Shows the peer, to which `fd` is connected, the key of this worker.
  virtual void greet(int fd, const std::string& key) = 0;
  // Returns the key of the process that has connected. Reads have a deadline.
  virtual std::string receive_greeting(int fd) = 0;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // How long a process that has connected may be silent.
  static constexpr int kHandshakeSeconds = 10;

  struct Peer {
    stream::Address address;
    std::string key;
  };

  struct Link {
    Link(int fd, int peer, bool peer_calls) : socket(fd), peer(peer), peer_calls(peer_calls) {}

    void shut() const { ::shutdown(socket.get(), SHUT_RDWR); }

    const Fd socket;
    int peer;               // -1 until the peer has proved itself
    const bool peer_calls;  // else this worker calls
    std::deque<Parts> queue;
    std::condition_variable changed;
    bool finishing = false;  // the thread that writes ends when the queue is empty
    bool broken = false;     // nothing can be sent any more
    bool ended = false;      // `thread` can be joined
    std::thread thread;
  };

  // With the mutex.
  void shut_links(int peer) {
    for (const auto& link : links_) {
      if (link->peer == peer) {
        link->shut();
      }
    }
  }

  void accept_all() {
    for (;;) {
      const int fd = ::accept4(listener_->get(), nullptr, nullptr, SOCK_CLOEXEC);
      try {
        const Lock lock(mutex_);
        if (closing_) {
          fd >= 0 ? ::close(fd) : 0;
          return;
        }
        add_link(fd, -1, true);
      } catch (const std::exception&) {  // too many files or threads: the peer waits, or tries again
        ::usleep(10'000);
      }
    }
  }

  // With the mutex. Takes over `fd`, which is -1 if it could not be opened.
  std::shared_ptr<Link> add_link(int fd, int peer, bool peer_calls) {
    links_.remove_if([](const auto& link) { return link->ended && (link->thread.join(), true); });
    const auto link = std::make_shared<Link>(fd, peer, peer_calls);
    links_.push_back(link);  // first, because a thread that is in no list would not be joined
    try {
      link->thread = start_thread("rpc-read", [this, link] { run(link); });
    } catch (...) {
      links_.pop_back();
      throw;
    }
    return link;
  }

  void run(const std::shared_ptr<Link>& link) {
    const int fd = link->socket.get();
    std::thread writer;
    std::string reason;
    try {
      stream::send_without_delay(fd);
      link->peer_calls ? admit(link) : connect(*link);
      writer = start_thread("rpc-write", [this, link] { write_all(*link); });
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
    } else if (link->peer < 0 && reason != stream::kClosed) {
      callbacks_.report("a process has connected: " + reason);
    }
    std::deque<Parts> unsent;  // released without the mutex, because that may wait for Python
    {
      const Lock lock(mutex_);
      const auto current = current_.find({link->peer, link->peer_calls});
      if (current != current_.end() && current->second == link) {
        current_.erase(current);  // the next call connects again
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

  void connect(const Link& link) {
    Lock lock(mutex_);
    const auto known = peers_.find(link.peer);
    if (known == peers_.end()) {
      throw TransportError("the worker has left");
    }
    const Peer peer = known->second;
    lock.unlock();
    stream::connect_to(link.socket.get(), peer.address);
    greet(link.socket.get(), peer.key);
  }

  void admit(const std::shared_ptr<Link>& link) {
    stream::limit_reads(link->socket.get(), kHandshakeSeconds);
    const std::string key = receive_greeting(link->socket.get());
    stream::limit_reads(link->socket.get(), 0);
    struct Lookup {
      bool done = false;
      std::optional<int> peer;
    };
    const auto lookup = std::make_shared<Lookup>();
    const bool asked = callbacks_.look_up(key, [this, link, lookup](std::optional<int> peer) {
      const Lock lock(mutex_);
      *lookup = {true, peer};
      link->changed.notify_all();
    });
    Lock lock(mutex_);
    link->changed.wait(lock, [&] { return !asked || lookup->done || link->finishing; });
    if (!lookup->peer) {
      throw TransportError("it does not belong to this group");
    }
    link->peer = *lookup->peer;
    current_[{link->peer, true}] = link;
  }

  void write_all(Link& link) {
    for (;;) {
      Parts parts;  // released on this thread, which may wait for Python
      {
        Lock lock(mutex_);
        link.changed.wait(lock, [&] { return !link.queue.empty() || link.finishing || link.broken; });
        if (link.broken || link.queue.empty()) {
          ::shutdown(link.socket.get(), SHUT_WR);  // the peer reads what was sent, and closes
          return;
        }
        parts = std::move(link.queue.front());
        link.queue.pop_front();
      }
      try {
        stream::send_message(link.socket.get(), parts);
      } catch (const std::exception&) {  // the thread that reads sees the end, and reports it
        link.shut();
        return;
      }
    }
  }

  const uint64_t max_message_;
  CallbackThread callbacks_;
  std::unique_ptr<Fd> listener_;
  std::thread acceptor_;
  EventQueue events_;
  mutable std::mutex mutex_;  // protects all below, and what is in links
  std::condition_variable ended_;
  bool closing_ = false;
  std::map<int, Peer> peers_;
  std::map<std::pair<int, bool>, std::shared_ptr<Link>> current_;  // by peer and peer_calls: where send() sends
  std::list<std::shared_ptr<Link>> links_;                         // all whose thread is not joined
};

}  // namespace rpc_backends
