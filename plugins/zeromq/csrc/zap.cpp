#include "zap.h"

#include <cerrno>
#include <utility>
#include <vector>

namespace rpc_backends::zeromq {

struct Zap::Request {
  std::string session;  // libzmq's session, which gets the answer
  std::string id;
  std::string address;
  std::string key;  // Z85; empty without encryption
};

namespace {

constexpr size_t kRawKeySize = 32;
// The frames before the credentials: session, empty, version, id, domain, address, routing id, mechanism.
constexpr size_t kFrames = 8;

// The origin of a connection, for the log.
std::string shown(const std::string& address) {
  if (address.empty() || address[0] == ':') {  // a Unix socket: ":UID:GID:PID"
    return "a process on this host" + (address.empty() ? std::string() : " (uid:gid:pid " + address.substr(1) + ")");
  }
  return address;
}

}  // namespace

Zap::Zap(Context& context, EventLoop& event_loop, CallbackThread& callback_thread, Directory& directory,
         Counters& counters, bool encrypts)
    : event_loop_(event_loop),
      callback_thread_(callback_thread),
      directory_(directory),
      counters_(counters),
      encrypts_(encrypts),
      socket_(context, socket_type::kRouter) {
  if (!socket_.bind("inproc://zeromq.zap.01")) {
    throw TransportError("ZeroMQ cannot check who connects: " + text_of(errno));
  }
  event_loop_.watch(socket_.fd(), [this] { answer_all(); });
}

void Zap::answer_all() {
  Request request;
  while (take(request)) {
    decide(request);
  }
}

bool Zap::take(Request& request) {
  std::vector<std::string> frames;
  Frame frame;
  do {
    if (!socket_.receive(frame)) {
      return false;
    }
    frames.emplace_back(frame.data(), frame.size());
  } while (frame.more());
  frames.resize(kFrames + 1);
  request = {frames[0], frames[3], frames[5], {}};
  if (frames[7] == "CURVE" && frames[8].size() == kRawKeySize) {
    char text[kKeySize + 1];
    zmq().z85_encode(text, reinterpret_cast<const unsigned char*>(frames[8].data()), kRawKeySize);
    request.key.assign(text, kKeySize);
  }
  return true;
}

void Zap::decide(const Request& request) {
  if (!encrypts_) {
    admit(request, "");
    return;
  }
  if (const std::optional<int> worker = directory_.owner(request.key)) {
    admit(request, std::to_string(*worker));
    return;
  }
  if (!callback_thread_.can_look_up() || request.key.empty()) {
    refuse(request, "it does not belong to any worker that this worker knows");
    return;
  }
  const bool asked = callback_thread_.look_up(request.key, [this, request](std::optional<int> worker) {
    event_loop_.post([this, request, worker] {
      if (worker) {
        directory_.learn(*worker, request.key);
        admit(request, std::to_string(*worker));
      } else {
        refuse(request, "it does not belong to any worker of the group");
      }
      // Sending makes libzmq notice new requests, and its descriptor does not signal those again.
      answer_all();
    });
  });
  if (!asked) {
    refuse(request, "too many connections with unknown keys at the same time");
  }
}

void Zap::admit(const Request& request, const std::string& user) {
  reply(request, "200", "OK", user);
}

void Zap::refuse(const Request& request, const std::string& why) {
  ++counters_.refused;
  callback_thread_.report(shown(request.address) + ": its public key is " + request.key + ", and " + why);
  reply(request, "400", "unknown key", "");
}

void Zap::reply(const Request& request, const std::string& status, const std::string& text, const std::string& user) {
  const std::string frames[] = {request.session, "", "1.0", request.id, status, text, user, ""};
  const size_t count = std::size(frames);
  for (size_t i = 0; i < count; ++i) {
    Frame frame(frames[i].data(), frames[i].size());
    // If the requesting session is gone, no other session gets the answer.
    socket_.send(frame, i + 1 < count);
  }
}

}  // namespace rpc_backends::zeromq
