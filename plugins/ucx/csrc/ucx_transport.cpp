#include "ucx_transport.h"

#include <sched.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "links.h"
#include "tcp_guard.h"
#include "timers.h"
#include "ucp.h"

namespace rpc_backends::ucx {

namespace {

// How often a thread yields while it waits for the lock, and while it leaves the lock to others.
constexpr int kAttempts = 100;

Settings checked(Settings settings) {
  constexpr uint64_t most = uint64_t{1} << 61;
  if (settings.max_message == 0 || settings.max_message > most) {
    throw TransportError("max_message must be from 1 to 2**61 bytes, not " + std::to_string(settings.max_message));
  }
  return settings;
}

// UCX listens on TCP from the moment that a worker exists, so it must not exist without the guard.
std::unique_ptr<Worker> guarded_worker(const Context& context, TcpGuard& guard) {
  const std::vector<std::string> resources = context.resources();
  const bool has_tcp = std::any_of(resources.begin(), resources.end(),
                                   [](const std::string& resource) { return resource.rfind("tcp/", 0) == 0; });
  const std::string refusal =
      "this worker does not use TCP, because it cannot keep unknown processes away from UCX's TCP port with UCX " +
      std::string(ucp_get_version_string()) +
      ". Install the version of libucx-cu12 that rpc-backend-ucx was compiled with, set transports without tcp, or use "
      "ZEROMQ";
  if (has_tcp && !TcpGuard::is_in_force()) {
    throw TransportError(refusal);
  }
  const TcpGuard::Scope scope(&guard);
  auto worker = std::make_unique<Worker>(context);
  if (has_tcp && guard.listeners() == 0) {
    throw TransportError(refusal);
  }
  return worker;
}

}  // namespace

// The order of the members matters: later ones use earlier ones.
struct UcxTransport::Impl : Inbox::Source, GatedTransport::Engine {
  Impl(const Settings& settings, Counters& counters, CallbackThread::OnUnknownKey on_unknown_proof,
       CallbackThread::OnRefused on_refused)
      : context(settings.config),
        device_memory(context, settings.device_memory),
        callback_thread("rpc-ucx-calls", std::move(on_unknown_proof), std::move(on_refused)),
        identity(settings.certificates ? std::make_unique<Identity>(settings.certificates) : nullptr),
        guard(std::chrono::duration_cast<std::chrono::milliseconds>(settings.handshake_timeout), identity.get(),
              [this, &counters](const std::string& line) {
                ++counters.refused;
                callback_thread.report(line);
              }),
        worker(guarded_worker(context, guard)),
        fd(worker->event_fd()),
        inbox(*this, settings.poll_time, counters),
        links(Services{settings, counters, inbox, callback_thread, releaser, timers, device_memory, identity.get()},
              *worker) {
    inbox.watch(timers.fd(), Inbox::kFirstId);
  }

  // UCX's worker is destroyed before the objects that its requests use.
  ~Impl() override { worker.reset(); }

  // Runs a function with the lock. Releases sent messages without the lock, because their owners may need other
  // locks.
  template <typename Task>
  std::invoke_result_t<Task&> locked(Task&& task) {
    struct Release {
      Impl& impl;
      std::unique_lock<std::mutex> lock;
      Messages sent;
      ~Release() {
        if (impl.links.has_sent()) {
          impl.links.take_sent(sent);
        }
        lock.unlock();
      }
    };
    Release release{*this, take_lock(), {}};
    const TcpGuard::Scope scope(guard.listeners() == 0 ? nullptr : &guard);
    return task();
  }

  // The lock is mostly held for microseconds, by the thread that polls. To sleep until it is free would take longer.
  std::unique_lock<std::mutex> take_lock() {
    ++waiting;
    std::unique_lock<std::mutex> lock(mutex, std::try_to_lock);
    for (int i = 0; !lock && i < kAttempts; ++i) {
      sched_yield();
      (void)lock.try_lock();
    }
    if (!lock) {
      lock.lock();
    }
    --waiting;
    return lock;
  }

  void forget(int peer) override {
    locked([this, peer] { links.forget(peer); });
  }

  void send(int peer, Parts parts, bool reply) override {
    // It is released here, without the lock, if it cannot be sent.
    std::unique_ptr<Outgoing> outgoing = links.prepare(std::move(parts));
    locked([&] { links.send(peer, std::move(outgoing)); });
    if (!reply) {
      inbox.may_block();
    }
  }

  void reject(int peer, std::string_view reason) override {
    locked([&] { links.reject(peer, reason); });
  }

  Received receive(Event& event, Clock::time_point deadline) override { return inbox.receive(event, deadline); }

  void stop_receiving() override { inbox.close(); }

  void close(double linger) override {
    callback_thread.stop();
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(linger));
    locked([this, deadline] { links.close(deadline); });
  }

  bool progress() override {
    // The thread that polls holds the lock most of the time. Others must not wait while it copies one segment of a
    // large message after the other.
    for (int i = 0; waiting.load(std::memory_order_relaxed) > 0 && i < kAttempts; ++i) {
      sched_yield();
    }
    return locked([this] {
      const bool busy = links.progress();
      copying.store(links.is_fetching(), std::memory_order_relaxed);
      return busy;
    });
  }

  bool is_copying() const override { return copying.load(std::memory_order_relaxed); }

  bool arm() override {
    return locked([this] { return ucp_worker_arm(worker->get()) == UCS_OK; });
  }

  void on_ready(uint64_t id) override {
    locked([this, id] {
      if (id == Inbox::kFirstId) {
        struct WatchAgain {
          Impl& impl;
          ~WatchAgain() { impl.inbox.watch_again(impl.timers.fd(), Inbox::kFirstId); }
        } const watch_again{*this};
        timers.run();
      } else {
        links.on_process_end(id);
      }
    });
  }

  int event_fd() const override { return fd; }

  Context context;
  const DeviceMemory device_memory;
  CallbackThread callback_thread;
  Releaser releaser{"rpc-ucx-release", 0};
  Timers timers;
  const std::unique_ptr<Identity> identity;  // null if workers have no certificates
  TcpGuard guard;
  std::mutex mutex;
  std::atomic<int> waiting{0};
  std::atomic<bool> copying{false};
  std::unique_ptr<Worker> worker;
  const int fd;
  Inbox inbox;
  Links links;
};

UcxTransport::UcxTransport(const Settings& settings, CallbackThread::OnUnknownKey on_unknown_proof,
                           CallbackThread::OnRefused on_refused)
    : settings_(checked(settings)) {
  set_engine(std::make_unique<Impl>(settings_, *counters_, std::move(on_unknown_proof), std::move(on_refused)));
}

UcxTransport::~UcxTransport() {
  GatedTransport::close(0);
}

UcxTransport::Impl& UcxTransport::impl() const {
  return static_cast<Impl&>(engine());
}

std::string UcxTransport::address() const {
  const Use use(*this);
  return impl().locked([this] { return impl().worker->address(); });
}

void UcxTransport::start(int self, const ConnectionKey::Bytes& key) {
  const Use use(*this);
  impl().guard.set_key(key);
  impl().locked([this, self] { impl().links.start(self); });
}

void UcxTransport::learn_address(int peer, const std::string& address, const Credentials& credentials) {
  const Use use(*this);
  if (peer < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(peer));
  }
  impl().locked([&] { impl().links.learn(peer, address, credentials); });
}

Identity& UcxTransport::identity() const {
  if (!impl().identity) {
    throw TransportError("the transport has no certificates");
  }
  return *impl().identity;
}

void UcxTransport::renew(std::shared_ptr<const Certificates> certificates) {
  const Use use(*this);
  identity().renew(std::move(certificates));
}

void UcxTransport::revoke(const std::vector<std::string>& names) {
  const Use use(*this);
  identity().revoke(names);
  impl().locked([this] { impl().links.end_revoked(); });
  impl().guard.end_revoked();
}

Text UcxTransport::listen(int /*self*/, std::string_view /*name*/) {
  throw TransportError("a UCX transport needs proofs; use start() and address()");
}

void UcxTransport::learn(int /*peer*/, std::string_view /*name*/, std::string_view /*address*/) {
  throw TransportError("a UCX transport needs proofs; use learn_address()");
}

bool UcxTransport::moves(std::string_view device_type) const {
  return settings_.device_memory.count(std::string(device_type)) != 0;
}

void UcxTransport::set_allocator(DeviceAllocator allocate) {
  const Use use(*this);
  impl().locked([&] { impl().links.set_allocator(std::move(allocate)); });
}

Metrics UcxTransport::metrics() const {
  const auto text = [](const std::atomic<uint64_t>& count) { return std::to_string(count); };
  Metrics metrics{
      {"ucx.version", ucp_get_version_string()},
      {"ucx.connections", text(counters_->connections)},
      {"ucx.messages_sent", text(counters_->messages_sent)},
      {"ucx.messages_received", text(counters_->messages_received)},
      {"ucx.peers_lost", text(counters_->peers_lost)},
      {"ucx.peers_found", text(counters_->peers_found)},
      {"ucx.refused", text(counters_->refused)},
      {"ucx.rejected", text(counters_->rejected)},
      {"ucx.dropped_messages", text(counters_->dropped)},
      {"ucx.device_bytes_received", text(counters_->device_bytes)},
      {"ucx.sleeps", text(counters_->sleeps)},
  };
  if (const Admission admission(*this); admission) {
    for (const auto& [peer, transports] : impl().locked([this] { return impl().links.transports(); })) {
      metrics["ucx.transports." + std::to_string(peer)] = transports;
    }
  }
  return metrics;
}

}  // namespace rpc_backends::ucx
