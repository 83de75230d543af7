#include "agent/calls.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace rpc_backends {

namespace {

constexpr std::chrono::milliseconds kPulse{50};
// How often a call that waits for room checks whether the messages of timed-out calls were sent.
constexpr std::chrono::milliseconds kLook{20};
constexpr size_t kFewGivenUp = 64;
// The most calls that time out in one step.
constexpr size_t kMostLate = 1024;
// The longest timeout; it keeps the clock from overflowing.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 10);

}  // namespace

Calls::~Calls() {
  stop();
}

void Calls::start() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopped_) {
    thread_ = std::thread([this] {
      while (!contained("in the timeout thread", [this] { watch(); })) {
        std::this_thread::sleep_for(kPulse);
      }
    });
    stopped_ = false;
  }
}

void Calls::ask_for_pulse() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pulse_wanted_ = true;
  }
  alarm_.notify_one();
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
      thread_.detach();  // a callback of a timed-out call shuts down the agent on this thread
    } else {
      thread_.join();
    }
  }
}

FuturePtr Calls::add(uint64_t id, Call call, Clock::time_point started, bool may_wait) {
  auto future = call.future;
  call.bytes += kCallBytes;
  call.deadline = deadlines_.end();
  const auto deadline =
      call.timeout.count() > 0 ? started + std::min(call.timeout, kLongest) : Clock::time_point::max();
  bool earlier = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (may_wait && !fits(call.peer, call.bytes)) {
      Peer& peer = peers_[call.peer];
      look_through(peer);
      if (fits(call.peer, call.bytes)) {
        break;
      }
      const auto now = Clock::now();
      if (now >= deadline) {
        ++timeouts_;
        return {};
      }
      const auto look = peer.given_up.empty() ? Clock::time_point::max() : now + kLook;
      if (const auto until = std::min(deadline, look); until == Clock::time_point::max()) {
        room_.wait(lock);
      } else {
        room_.wait_until(lock, until);
      }
    }
    Peer& peer = peers_[call.peer];  // done first, so that an exception below leaves no half-added call
    const auto [place, is_new] = calls_.emplace(id, std::move(call));
    Call& entered = place->second;
    if (entered.timeout.count() > 0) {
      try {
        entered.deadline = deadlines_.emplace(deadline, id);
      } catch (...) {
        calls_.erase(place);
        throw;
      }
      earlier = deadline < watched_;
    }
    peer.unanswered += entered.bytes;
  }
  if (earlier) {
    alarm_.notify_one();
  }
  return future;
}

bool Calls::fits(int peer, uint64_t bytes) const {
  const auto of_peer = peers_.find(peer);
  // A call that is larger than the limit is sent alone.
  return stopped_ || of_peer == peers_.end() || of_peer->second.unanswered == 0 ||
         of_peer->second.unanswered + bytes <= unanswered_bytes_;
}

void Calls::fail_after(std::chrono::milliseconds delay, uint64_t id, const std::string& error) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto call = calls_.find(id);
    if (call == calls_.end()) {
      return;
    }
    const auto deadline = deadlines_.emplace(Clock::now() + delay, id);
    forget_deadline(call->second);
    call->second.timeout = delay;
    call->second.deadline = deadline;
    call->second.error = error;
  }
  alarm_.notify_one();
}

bool Calls::waits(uint64_t id, int peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto call = calls_.find(id);
  return call != calls_.end() && call->second.peer == peer;
}

std::optional<Calls::Call> Calls::take(uint64_t id, int peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto entry = calls_.find(id);
  if (entry == calls_.end() || entry->second.peer != peer) {
    ++late_answers_;
    const auto of_peer = peers_.find(peer);
    if (of_peer != peers_.end()) {
      const auto given_up = of_peer->second.given_up.find(id);
      if (given_up != of_peer->second.given_up.end()) {
        give_back(of_peer->second, given_up->second.bytes);
        of_peer->second.given_up.erase(given_up);
      }
    }
    return std::nullopt;
  }
  Call call = std::move(entry->second);
  calls_.erase(entry);
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
  peer.unanswered -= std::min(bytes, peer.unanswered);
  room_.notify_all();  // whatever is left: a call larger than the limit waits for the last answer
}

// The bytes of a sent message no longer count, because none of its memory is here. The peer may still have them, but it
// has its own limit.
void Calls::give_up(uint64_t id, const Call& call) {
  Peer& peer = peers_[call.peer];
  if (call.unsent.expired()) {
    give_back(peer, call.bytes);
    return;
  }
  if (peer.given_up.size() >= std::max(peer.look_at, kFewGivenUp)) {
    look_through(peer);
    peer.look_at = 2 * peer.given_up.size();
  }
  if (contained("while giving up a call", [&] { peer.given_up.emplace(id, GivenUp{call.bytes, call.unsent}); })) {
    room_.notify_all();  // a call that waits for room looks through them from now on
  } else {
    give_back(peer, call.bytes);  // or they would count for ever
  }
}

// Gives back the bytes of timed-out calls whose messages were sent.
void Calls::look_through(Peer& peer) {
  for (auto given_up = peer.given_up.begin(); given_up != peer.given_up.end();) {
    if (given_up->second.unsent.expired()) {
      give_back(peer, given_up->second.bytes);
      given_up = peer.given_up.erase(given_up);
    } else {
      ++given_up;
    }
  }
}

Calls::Taken Calls::take_all(int peer, uint64_t below) {
  Taken taken;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto next = calls_.begin(); next != calls_.end() && next->first < below;) {
    const auto call = next++;
    if (call->second.peer == peer) {
      forget_deadline(call->second);
      give_back(peers_[peer], call->second.bytes);
      taken.insert(taken.end(), calls_.extract(call));
    }
  }
  if (below == LostPeers::kAllCalls) {
    peers_.erase(peer);
    room_.notify_all();
  }
  return taken;
}

Calls::Taken Calls::take_all() {
  Taken taken;
  std::lock_guard<std::mutex> lock(mutex_);
  taken.swap(calls_);
  deadlines_.clear();
  peers_.clear();
  room_.notify_all();
  return taken;
}

uint64_t Calls::unanswered_bytes() const {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [id, peer] : peers_) {
    bytes += peer.unanswered;
  }
  return bytes;
}

size_t Calls::waiting() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return calls_.size();
}

size_t Calls::waiting(int peer) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<size_t>(
      std::count_if(calls_.begin(), calls_.end(), [peer](const auto& entry) { return entry.second.peer == peer; }));
}

void Calls::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    const auto now = Clock::now();
    std::vector<Call> late;
    const auto is_due = [&] { return !deadlines_.empty() && deadlines_.begin()->first <= now; };
    if (is_due()) {
      late.reserve(std::min(deadlines_.size(), kMostLate));  // throws before a call is taken
    }
    while (is_due() && late.size() < late.capacity()) {
      const auto entry = calls_.find(deadlines_.begin()->second);
      if (entry != calls_.end()) {
        late.push_back(std::move(entry->second));
        give_up(entry->first, late.back());
        calls_.erase(entry);
      }
      deadlines_.erase(deadlines_.begin());
    }
    if (!late.empty()) {
      timeouts_ += std::count_if(late.begin(), late.end(), [](const Call& call) { return call.error.empty(); });
      lock.unlock();
      on_late_(std::move(late));
      lock.lock();
      continue;
    }
    if (pulse_wanted_ && now >= pulse_) {
      pulse_wanted_ = false;
      lock.unlock();
      bool again = true;  // also after an exception: those that wait for the pulse do not ask for it a second time
      contained("in the timeout thread", [&] { again = on_pulse_(); });
      lock.lock();
      pulse_wanted_ |= again;
      pulse_ = Clock::now() + kPulse;
      continue;
    }
    watched_ = deadlines_.empty() ? Clock::time_point::max() : deadlines_.begin()->first;
    if (pulse_wanted_) {
      alarm_.wait_until(lock, std::min(watched_, pulse_));
    } else if (deadlines_.empty()) {
      alarm_.wait(lock);
    } else {
      alarm_.wait_until(lock, watched_);
    }
  }
}

}  // namespace rpc_backends
