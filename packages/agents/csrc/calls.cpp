#include "calls.h"

#include <torch/csrc/distributed/rpc/rpc_agent.h>
#include <torch/csrc/distributed/rpc/utils.h>

#include <stdexcept>

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

std::string timeout_text(std::chrono::milliseconds timeout) {
  // Torch's words, which programs look for; the place for the number is marked in them.
  std::string text = rpc::kRpcTimeoutErrorStr;
  const auto place = text.find("{}");
  if (place != std::string::npos) {
    text.replace(place, 2, std::to_string(timeout.count()));
  }
  return rpc::makeRPCError(text, rpc::RPCErrorType::TIMEOUT);
}

void fail(const FuturePtr& future, const std::string& text) {
  future->setError(std::make_exception_ptr(std::runtime_error(text)));
}

Calls::~Calls() {
  stop();
}

void Calls::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    stopped_ = false;
    thread_ = std::thread([this] { watch(); });
  }
}

void Calls::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  alarm_.notify_all();
  room_.notify_all();
  if (thread_.joinable()) {
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // a callback of a call whose time was up shuts the agent down
    } else {
      thread_.join();
    }
  }
}

FuturePtr Calls::add(uint64_t id, int peer, uint64_t bytes, std::chrono::milliseconds timeout) {
  auto future = c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
  bool earlier = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Call call{peer, future, bytes, timeout, deadlines_.end()};
    peers_[peer].unanswered += bytes;
    if (timeout.count() > 0) {
      call.deadline = deadlines_.emplace(Clock::now() + timeout, id);
      earlier = call.deadline->first < watched_;
    }
    calls_.emplace(id, std::move(call));
  }
  if (earlier) {
    alarm_.notify_one();
  }
  return future;
}

bool Calls::admit(int peer, uint64_t bytes, std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto fits = [&] {
    const auto found = peers_.find(peer);
    // What is larger than the limit goes alone.
    return stopped_ || found == peers_.end() || found->second.unanswered == 0 ||
        found->second.unanswered + bytes <= unanswered_bytes_;
  };
  if (timeout.count() > 0) {
    return room_.wait_for(lock, timeout, fits);
  }
  room_.wait(lock, fits);
  return true;
}

std::optional<Calls::Call> Calls::take(uint64_t id, int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = calls_.find(id);
  if (found == calls_.end() || found->second.peer != peer) {
    ++late_answers_;
    const auto of_peer = peers_.find(peer);
    if (of_peer != peers_.end()) {
      const auto given_up = of_peer->second.given_up.find(id);
      if (given_up != of_peer->second.given_up.end()) {
        give_back(of_peer->second, given_up->second);
        of_peer->second.given_up.erase(given_up);
      }
    }
    return std::nullopt;
  }
  Call call = std::move(found->second);
  calls_.erase(found);
  give_back(peers_[peer], call.bytes);
  forget_deadline(call);
  return call;
}

void Calls::forget_deadline(const Call& call) {
  if (call.timeout.count() > 0) {
    deadlines_.erase(call.deadline);
  }
}

void Calls::give_back(Peer& peer, uint64_t bytes) {
  const bool was_full = peer.unanswered >= unanswered_bytes_ / 2;
  peer.unanswered -= std::min(bytes, peer.unanswered);
  if (was_full) {
    room_.notify_all();
  }
}

std::vector<Calls::Call> Calls::take_all(int peer) {
  std::vector<Call> taken;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (it->second.peer == peer) {
      forget_deadline(it->second);
      taken.push_back(std::move(it->second));
      it = calls_.erase(it);
    } else {
      ++it;
    }
  }
  peers_.erase(peer);
  room_.notify_all();
  return taken;
}

std::vector<Calls::Call> Calls::take_all() {
  std::vector<Call> taken;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [id, call] : calls_) {
    taken.push_back(std::move(call));
  }
  calls_.clear();
  deadlines_.clear();
  peers_.clear();
  room_.notify_all();
  return taken;
}

size_t Calls::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_.size();
}

void Calls::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    const auto now = Clock::now();
    std::vector<Call> late;
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      const auto found = calls_.find(deadlines_.begin()->second);
      deadlines_.erase(deadlines_.begin());
      if (found != calls_.end()) {
        peers_[found->second.peer].given_up.emplace(found->first, found->second.bytes);
        late.push_back(std::move(found->second));
        calls_.erase(found);
      }
    }
    if (!late.empty()) {
      timeouts_ += late.size();
      lock.unlock();
      on_late_(std::move(late));
      lock.lock();
      continue;
    }
    watched_ = deadlines_.empty() ? Clock::time_point::max() : deadlines_.begin()->first;
    if (deadlines_.empty()) {
      alarm_.wait(lock);
    } else {
      alarm_.wait_until(lock, watched_);
    }
  }
}

}  // namespace rpc_backends
