#include "listener.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "endpoint.h"
#include "memory_shortage.h"

namespace rpc_backends::zeromq {

namespace {

// Connections per peer: the current one, and earlier ones that still have messages.
constexpr size_t kMaxCallers = 4;

constexpr std::string_view kIpc = "ipc://";

}  // namespace

Listener::~Listener() {
  close(Clock::now());
}

std::string Listener::bind(const std::string& endpoint) {
  std::string bound;
  std::unique_ptr<Fd> socket = Endpoint::listen(endpoint, bound);
  File file;
  if (endpoint.compare(0, kIpc.size(), kIpc) == 0 && endpoint[kIpc.size()] != '@') {
    file.path = endpoint.substr(kIpc.size());
    struct stat status{};
    if (::lstat(file.path.c_str(), &status) != 0) {
      throw BindError(errno, endpoint);
    }
    file.device = status.st_dev;
    file.number = status.st_ino;
  }
  const auto acceptor = std::make_shared<Acceptor>(services_, weak_from_this(), std::move(socket), bound);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    acceptors_.push_back(acceptor);
    if (!file.path.empty()) {
      files_.push_back(file);
    }
  }
  acceptor->start();
  return bound;
}

void Listener::learn(int peer, const std::string& answer) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_[peer] = answer;
}

void Listener::reply(int peer, Parts parts) {
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto callers = callers_.find(peer);
    if (callers != callers_.end() && !callers->second.empty()) {
      stream = callers->second.back().stream;
    }
  }
  if (!stream || !stream->send(std::move(parts))) {
    throw TransportError("worker " + std::to_string(peer) + " has closed the connection that carried the request");
  }
}

void Listener::forget(int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  answers_.erase(peer);
  for (const Caller& caller : callers_[peer]) {
    for (const auto& stream : caller.streams()) {
      stream->forget("worker " + std::to_string(peer) + " has left the group");
    }
  }
}

void Listener::reject(int peer, const std::string& reason) {
  std::vector<Caller> callers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    callers = callers_[peer];
  }
  for (const Caller& caller : callers) {
    ++services_.of_streams.counters.rejected;
    for (const auto& stream : caller.streams()) {
      stream->refuse(reason);
    }
  }
}

std::vector<Listener::Caller> Listener::callers() const {
  std::vector<Caller> all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [peer, callers] : callers_) {
    all.insert(all.end(), callers.begin(), callers.end());
  }
  return all;
}

void Listener::wait_until_sent(Clock::time_point deadline) {
  for (const Caller& caller : callers()) {
    caller.link->wait_until_taken(deadline);
    for (const auto& stream : caller.streams()) {
      stream->wait_until_sent(deadline);
    }
  }
}

void Listener::close(Clock::time_point deadline) {
  const std::vector<Caller> left = callers();
  std::vector<std::shared_ptr<Acceptor>> acceptors;
  std::vector<File> files;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    callers_.clear();
    acceptors.swap(acceptors_);
    files.swap(files_);
  }
  std::for_each(files.begin(), files.end(), &Listener::remove);
  for (const auto& acceptor : acceptors) {
    acceptor->stop();
  }
  for (const Caller& caller : left) {
    caller.close(deadline);
  }
}

std::vector<std::shared_ptr<Stream>> Listener::Caller::streams() const {
  std::vector<std::shared_ptr<Stream>> all = lanes;
  all.push_back(stream);
  return all;
}

void Listener::Caller::close(Clock::time_point deadline) const {
  const std::vector<std::shared_ptr<Stream>> all = streams();
  if (!lanes.empty()) {
    for (const auto& each : all) {
      each->drain(deadline);
    }
  }
  for (const auto& each : all) {
    each->close(deadline);
  }
}

void Listener::remove(const File& file) {
  struct stat status{};
  // Another process may listen there by now.
  if (::lstat(file.path.c_str(), &status) == 0 && status.st_dev == file.device && status.st_ino == file.number) {
    ::unlink(file.path.c_str());
  }
}

// --- on the event loop's thread ---------------------------------------------------------------------

std::string Listener::answer_for(int worker) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = answers_.find(worker);
  return entry == answers_.end() ? "" : entry->second;
}

Listener::Caller* Listener::find(int worker, uint64_t time) {
  const auto of_peer = callers_.find(worker);
  if (of_peer == callers_.end()) {
    return nullptr;
  }
  const auto entry = std::find_if(of_peer->second.begin(), of_peer->second.end(),
                                  [&](const Caller& caller) { return caller.time == time; });
  return entry == of_peer->second.end() ? nullptr : &*entry;
}

std::string Listener::refusal(const Greeting& greeting) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Caller* const caller = find(greeting.worker, greeting.time);
  if (greeting.lane == 0) {
    return caller == nullptr ? "" : "the connection is there already";
  }
  if (caller == nullptr) {
    return "the connection to which this one belongs has ended";
  }
  // They are opened one after the other.
  return greeting.lane == caller->lanes.size() + 1 && greeting.lane <= wire::kMaxLanes
             ? ""
             : "a connection for large messages has the wrong number";
}

void Listener::enter(std::unique_ptr<Channel> channel, const Greeting& greeting) {
  if (!is_ticking_) {
    tick();
  }
  const int worker = greeting.worker;
  const uint64_t time = greeting.time;
  const bool is_lane = greeting.lane != 0;
  const auto on_stream_end = [this, weak = weak_from_this(), worker, time](const std::string& reason) {
    if (const auto self = weak.lock()) {
      insist([&] {
        services_.of_streams.event_loop.post([this, weak, worker, time, reason] {
          if (const auto listener = weak.lock()) {
            on_end(worker, time, reason);
          }
        });
      });
    }
  };
  const Settings& settings = services_.of_streams.settings;
  std::shared_ptr<Link> link;
  std::shared_ptr<Stream> stream;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Caller* const first = is_lane ? find(worker, time) : nullptr;
    if (closed_ || (is_lane && first == nullptr)) {
      return;
    }
    std::vector<Subject> subjects;
    if (const auto* const tls = dynamic_cast<const TlsChannel*>(channel.get()); tls && settings.certificates) {
      subjects.push_back(tls->peer());
    }
    link = is_lane ? first->link : std::make_shared<Link>(settings.max_message);
    stream = std::make_shared<Stream>(services_.of_streams, worker, std::move(channel), on_stream_end, link, is_lane);
    if (is_lane) {
      first->lanes.push_back(stream);
      first->subjects.insert(first->subjects.end(), subjects.begin(), subjects.end());
    } else {
      add({worker, time, link, stream, {}, subjects});
    }
  }
  stream->start();
  link->add(stream, is_lane);
  if (is_lane) {
    return;
  }
  on_arrival_(worker);
}

// Needs the lock.
void Listener::add(Caller caller) {
  std::vector<Caller>& of_peer = callers_[caller.worker];
  if (of_peer.size() >= kMaxCallers) {
    of_peer.front().close(Clock::now());
    of_peer.erase(of_peer.begin());
  }
  const auto after =
      std::find_if(of_peer.begin(), of_peer.end(), [&](const Caller& other) { return other.time > caller.time; });
  of_peer.insert(after, std::move(caller));
}

void Listener::on_end(int worker, uint64_t time, const std::string& reason) {
  Caller ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Caller>& of_peer = callers_[worker];
    const auto entry =
        std::find_if(of_peer.begin(), of_peer.end(), [&](const Caller& caller) { return caller.time == time; });
    if (entry == of_peer.end()) {
      return;
    }
    ended = std::move(*entry);
    of_peer.erase(entry);
    if (of_peer.empty()) {
      callers_.erase(worker);
    }
  }
  if (!reason.empty()) {
    services_.callback_thread.report("worker " + std::to_string(worker) + ": " + reason);
  }
  ended.close(Clock::now());
}

void Listener::end_revoked(const Revoked& revoked) {
  for (const Caller& caller : callers()) {
    if (std::any_of(caller.subjects.begin(), caller.subjects.end(),
                    [&](const auto& subject) { return revoked.covers(subject); })) {
      on_end(caller.worker, caller.time, kRevoked);
    }
  }
}

// Ends connections on which nothing arrives for too long.
void Listener::tick() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_) {
      return;
    }
  }
  schedule_tick();
  for (const Caller& caller : callers()) {
    try {
      check_liveness(caller);
    } catch (const std::bad_alloc&) {  // the next tick checks it again
    }
  }
}

void Listener::schedule_tick() {
  const auto pause = std::chrono::milliseconds(milliseconds(services_.of_streams.settings.heartbeat / 2));
  is_ticking_ = false;
  insist([&] {
    services_.of_streams.event_loop.at(Clock::now() + pause, [weak = weak_from_this()] {
      if (const auto listener = weak.lock()) {
        listener->tick();
      }
    });
  });
  is_ticking_ = true;
}

void Listener::check_liveness(const Caller& caller) {
  const auto longest = std::chrono::milliseconds(milliseconds(services_.of_streams.settings.heartbeat_timeout));
  const auto streams = caller.streams();
  if (std::any_of(streams.begin(), streams.end(),
                  [&](const auto& stream) { return stream->check_liveness() >= longest; })) {
    on_end(caller.worker, caller.time, kNoHeartbeat);
  }
}

}  // namespace rpc_backends::zeromq
