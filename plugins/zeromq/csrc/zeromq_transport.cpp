#include "zeromq_transport.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "keys.h"
#include "memory_shortage.h"

namespace rpc_backends::zeromq {

namespace {

// Bytes of a message whose memory is released by the thread that has sent it.
constexpr size_t kReleasedAtOnce = 4096;

Settings checked(Settings settings) {
  constexpr double longest = 6553;
  const bool times = settings.heartbeat >= 0.001 && settings.heartbeat <= settings.heartbeat_timeout &&
                     settings.heartbeat_timeout >= 0.1 && settings.heartbeat_timeout <= longest &&
                     settings.handshake_timeout >= 0.001 && settings.handshake_timeout <= longest;
  if (!times) {
    throw TransportError(
        "heartbeat, heartbeat_timeout and handshake_timeout must be at most 6553 seconds, and "
        "heartbeat_timeout must be at least heartbeat and at least 0.1");
  }
  constexpr uint64_t most = uint64_t{1} << 61;
  if (settings.max_message == 0 || settings.max_message > most) {
    throw TransportError("max_message must be from 1 to 2**61 bytes, not " + std::to_string(settings.max_message));
  }
  if (settings.bulk_connections > wire::kMaxLanes) {
    throw TransportError("bulk_connections must be at most " + std::to_string(wire::kMaxLanes) + ", not " +
                         std::to_string(settings.bulk_connections));
  }
  return settings;
}

}  // namespace

// Members are made in this order; later ones use earlier ones.
struct ZeroMQTransport::Impl : GatedTransport::Engine {
  Impl(std::shared_ptr<const Settings> with, std::shared_ptr<Counters> counts,
       CallbackThread::OnUnknownKey on_unknown_key, CallbackThread::OnRefused on_refused)
      : settings(std::move(with)),
        counters(std::move(counts)),
        callback_thread("rpc-zmq-calls", std::move(on_unknown_key), std::move(on_refused)),
        tls(make_context(*settings)),
        services{*settings, inbox, event_loop, writer, releaser, *counters, tls.get()},
        peers(services),
        listener(
            std::make_shared<Listener>(Acceptor::Services{services, callback_thread, directory, proofs}, arrival())) {}

  static std::unique_ptr<TlsContext> make_context(const Settings& settings) {
    if (!settings.encrypts()) {
      return nullptr;
    }
    const Crypto& crypto = Crypto::get(settings.fips);
    return settings.certificates ? std::make_unique<TlsContext>(crypto, *settings.certificates)
                                 : std::make_unique<TlsContext>(crypto, settings.public_key, settings.secret_key);
  }

  void revoke(const std::vector<std::string>& names) {
    tls->revoked().set(names);
    event_loop.post([this] {
      peers.end_revoked(tls->revoked());
      listener->end_revoked(tls->revoked());
    });
  }

  std::function<void(int)> arrival() {
    return [this](int peer) { event_loop.post([this, peer] { peers.hint(peer); }); };
  }

  void forget(int peer) override {
    // Each step, although memory is short: the peer must not be admitted again.
    insist([&] { directory.forget(peer); });
    insist([&] { proofs.forget(peer); });
    insist([&] { peers.forget(peer); });
    insist([&] { listener->forget(peer); });
  }

  void send(int peer, Parts parts, bool reply) override {
    uint64_t bytes = 0;
    for (const Part& part : parts) {
      bytes += part.size;
    }
    if (const uint64_t most = directory.max_message(peer); bytes > most) {
      throw TransportError("a message of " + std::to_string(bytes) + " bytes is larger than the " +
                           std::to_string(most) + " that worker " + std::to_string(peer) +
                           " takes (its max_message_bytes)");
    }
    if (reply) {
      listener->reply(peer, std::move(parts));
    } else {
      peers.send(peer, std::move(parts));
    }
    ++counters->messages_sent;
  }

  void reject(int peer, std::string_view reason) override {
    const std::string text(reason);
    peers.end_connection(peer, "rejected: " + text);
    listener->reject(peer, text);
  }

  Received receive(Event& event, Clock::time_point deadline) override { return inbox.receive(event, deadline); }

  void stop_receiving() override { inbox.close(); }

  void close(double linger) override {
    const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds(linger));
    // Meanwhile the event loop ends handshakes, and the writer sends to all peers at the same time.
    peers.wait_until_sent(deadline);
    listener->wait_until_sent(deadline);
    event_loop.stop();
    writer.stop();
    callback_thread.stop();
    peers.close(deadline);
    listener->close(deadline);
  }

  const std::shared_ptr<const Settings> settings;
  const std::shared_ptr<Counters> counters;
  Inbox inbox;
  Directory directory;  // of public keys
  Directory proofs;     // for the Unix socket
  EventLoop event_loop;
  EventLoop writer{"rpc-zmq-writer"};
  CallbackThread callback_thread;
  Releaser releaser{"rpc-zmq-release", kReleasedAtOnce};  // after everything that releases messages
  const std::unique_ptr<TlsContext> tls;
  const Stream::Services services;
  Peers peers;
  const std::shared_ptr<Listener> listener;
};

ZeroMQTransport::ZeroMQTransport(const Settings& settings, CallbackThread::OnUnknownKey on_unknown_key,
                                 CallbackThread::OnRefused on_refused)
    : settings_(std::make_shared<Settings>(checked(settings))) {
  set_engine(std::make_unique<Impl>(settings_, counters_, std::move(on_unknown_key), std::move(on_refused)));
}

ZeroMQTransport::~ZeroMQTransport() {
  GatedTransport::close(0);
}

ZeroMQTransport::Impl& ZeroMQTransport::impl() const {
  return static_cast<Impl&>(engine());
}

std::vector<std::string> ZeroMQTransport::bind(const std::vector<std::string>& endpoints) {
  const Use use(*this);
  std::vector<std::string> bound;
  for (const std::string& endpoint : endpoints) {
    bound.push_back(impl().listener->bind(endpoint));
  }
  if (address_.empty() && !bound.empty()) {
    address_ = bound[0] + (settings_->encrypts() ? " " + settings_->public_key : "");
  }
  return bound;
}

void ZeroMQTransport::start(int self) {
  const Use use(*this);
  impl().peers.start(self);
}

Text ZeroMQTransport::listen(int self, std::string_view /*name*/) {
  start(self);
  return address_;
}

void ZeroMQTransport::learn(int peer, std::string_view /*name*/, std::string_view address) {
  const size_t space = address.find(' ');
  Credentials credentials;
  credentials.public_key = space == std::string_view::npos ? "" : address.substr(space + 1);
  learn_endpoint(peer, std::string(address.substr(0, space)), credentials);
}

void ZeroMQTransport::learn_endpoint(int peer, const std::string& endpoint, const Credentials& credentials) {
  const std::string& public_key = credentials.public_key;
  const Use use(*this);
  const std::string who = "worker " + std::to_string(peer);
  if (peer < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(peer));
  }
  if (settings_->encrypts() != !public_key.empty()) {
    throw TransportError(settings_->encrypts() ? who + " has no public key, and this worker encrypts"
                                               : who + " has a public key, and this worker does not encrypt");
  }
  if (settings_->encrypts() && !is_key(public_key)) {
    throw TransportError("the public key of " + who + " is invalid: it is not 40 characters of Z85");
  }
  const Endpoint checked_endpoint(endpoint);
  const auto is_proof = [](const std::string& proof) { return proof.size() == kProofSize; };
  if (settings_->wants_proofs && !(is_proof(credentials.our_greeting) && is_proof(credentials.their_greeting) &&
                                   is_proof(credentials.our_answer) && is_proof(credentials.their_answer))) {
    throw TransportError("the proofs of " + who + " are invalid: each must be " + std::to_string(kProofSize) +
                         " bytes");
  }
  impl().directory.learn(peer, public_key);
  impl().directory.limit(peer, credentials.max_message);
  impl().proofs.learn(peer, credentials.their_greeting);
  impl().listener->learn(peer, credentials.our_answer);
  impl().peers.learn(peer, checked_endpoint, credentials);
}

void ZeroMQTransport::renew(const Certificates& certificates) {
  const Use use(*this);
  if (!settings_->certificates || certificates.subject().identity != settings_->certificates->subject().identity) {
    throw TransportError(settings_->certificates
                             ? "the certificate is that of " + certificates.subject().identity +
                                   ", and this worker is " + settings_->certificates->subject().identity
                             : "this worker has started without a certificate");
  }
  impl().tls->renew(certificates);
}

void ZeroMQTransport::revoke(const std::vector<std::string>& names) {
  const Use use(*this);
  if (!settings_->certificates) {
    throw TransportError("this worker has started without a certificate");
  }
  impl().revoke(names);
}

Metrics ZeroMQTransport::metrics() const {
  const auto text = [](const std::atomic<uint64_t>& count) { return std::to_string(count); };
  return {
      {"zeromq.openssl", OpenSSL_version(OPENSSL_VERSION_STRING)},
      {"zeromq.connections", text(counters_->connections)},
      {"zeromq.bulk_pieces", text(counters_->bulk_pieces)},
      {"zeromq.messages_sent", text(counters_->messages_sent)},
      {"zeromq.messages_received", text(counters_->messages_received)},
      {"zeromq.peers_lost", text(counters_->peers_lost)},
      {"zeromq.peers_found", text(counters_->peers_found)},
      {"zeromq.refused", text(counters_->refused)},
      {"zeromq.failed_handshakes", text(counters_->handshakes)},
      {"zeromq.crowded_out", text(counters_->evicted)},
      {"zeromq.rejected", text(counters_->rejected)},
      {"zeromq.dropped_messages", text(counters_->dropped)},
  };
}

}  // namespace rpc_backends::zeromq
