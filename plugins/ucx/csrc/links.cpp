#include "links.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The time between two attempts to reach a lost peer. It doubles after each attempt.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5000};
// How long to keep the memory of a message that could not be sent. Its receiver may still be copying it.
constexpr std::chrono::seconds kReadTime{5};
// After this many calls of ucp_worker_progress(), UCX has handled everything that was in its queue before them.
constexpr int kDrain = 64;
// How long a copy from the memory of a peer may take before its connection is closed anyway.
constexpr std::chrono::seconds kCopyTime{5};
constexpr int kEveryPeer = -1;
// The most greetings that wait for a lookup. Unknown processes can send them, so there is a limit.
constexpr size_t kMostStrangers = 1000;
// Copying parts into the header of an active message is worth it up to this many bytes.
constexpr size_t kLongestHeader = 6144;

std::string called(int peer) {
  return "worker " + std::to_string(peer);
}

std::string text_of(const Proof& proof) {
  return {proof.data(), proof.size()};
}

// Returns the start time of a process, in clock ticks; 0 if there is no such process.
uint64_t start_of(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = line.rfind(')');  // end of the name, which may contain any characters
  if (end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(line.substr(end + 1));
  std::string skipped;
  uint64_t start = 0;
  for (int i = 0; i < 19; ++i) {
    fields >> skipped;
  }
  fields >> start;
  return start;
}

}  // namespace

struct Links::Link {
  Link(int id, uint64_t max_message) : peer(id), incoming(max_message) {}

  const int peer;
  std::string address;
  Credentials credentials;

  // To the peer.
  ucp_ep_h endpoint = nullptr;
  Token token;
  uint64_t next_number = 0;
  bool is_confirmed = false;
  std::deque<std::unique_ptr<Outgoing>> queue;  // of messages, until the link is confirmed
  uint64_t attempt = 0;                         // names the current link or attempt
  int failures = 0;
  bool is_lost = false;
  std::string reason;

  // From the peer.
  Token their_token;
  Incoming incoming;

  std::unique_ptr<Fd> process;
  uint64_t process_id = 0;
};

// A payload that is being received.
struct Links::Fetch {
  Links* links;
  int peer;
  Token token;
  Incoming::Target target;
};

Links::Links(const Services& services, Worker& worker)
    : services_(services), worker_(worker), max_header_(std::min(worker.max_header(), kLongestHeader)) {
  worker_.handle(Kind::kGreeting, &on_greeting, this);
  worker_.handle(Kind::kGoodbye, &on_goodbye, this);
  worker_.handle(Kind::kMessage, &on_message<Kind::kMessage>, this);
  worker_.handle(Kind::kPart, &on_message<Kind::kPart>, this);
}

// The UCX worker is destroyed already, so UCX uses none of this any more. Messages that are not sent completely are not
// released: their receivers may still copy them.
Links::~Links() {
  for (Fetch* const fetch : fetching_) {
    delete fetch;
  }
}

void Links::start(int self) {
  if (self < 0) {
    throw TransportError("a worker id must not be negative, and this is " + std::to_string(self));
  }
  if (self_ != -1 && self_ != self) {
    throw TransportError("the transport is already started as " + called(self_));
  }
  self_ = self;
}

Links::Link* Links::find(int peer) {
  const auto found = links_.find(peer);
  return found == links_.end() ? nullptr : found->second.get();
}

Links::Link* Links::owner_of(const Token& token) {
  const auto found = tokens_.find(token);
  return found == tokens_.end() ? nullptr : find(found->second);
}

void Links::learn(int peer, const std::string& address, const Credentials& credentials) {
  Link* link = find(peer);
  const bool is_known = link != nullptr && link->address == address &&
      link->credentials.our_proof == credentials.our_proof && link->credentials.their_proof == credentials.their_proof;
  if (!is_known) {
    if (link != nullptr) {
      lose(*link, "its address has changed", false);
      forget_process(*link);
      proofs_.erase(text_of(link->credentials.their_proof));
    } else {
      link = links_.emplace(peer, std::make_unique<Link>(peer, services_.settings.max_message)).first->second.get();
    }
    link->address = address;
    link->credentials = credentials;
    proofs_[text_of(credentials.their_proof)] = peer;
  }
  if (link->is_lost) {
    link->failures = 0;
    schedule_retry(*link);
  }
  const auto stranger = strangers_.find(text_of(credentials.their_proof));
  if (stranger != strangers_.end()) {
    const Greeting greeting = stranger->second;
    strangers_.erase(stranger);
    admit(peer, greeting);
  }
}

void Links::forget(int peer) {
  Link* const link = find(peer);
  if (link == nullptr) {
    return;
  }
  say_goodbye(*link, false, "the worker has removed this one from its group");
  end_incoming(*link);
  close_endpoint(*link);
  forget_process(*link);
  proofs_.erase(text_of(link->credentials.their_proof));
  links_.erase(peer);
}

// --- opening ----------------------------------------------------------------------------------------

Token Links::new_token() {
  // From the system's random source, because the token authenticates messages.
  const auto word = [this] { return uint64_t{device_()} << 32 | device_(); };
  return {word() | 1, word()};
}

void Links::open(Link& link) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(link.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_error;
  params.err_handler.arg = this;
  watch_process(link);
  take_log_line();
  check(ucp_ep_create(worker_.get(), &params, &link.endpoint), called(link.peer) + " cannot be reached");
  endpoints_[link.endpoint] = link.peer;
  link.token = new_token();
  link.next_number = 0;
  link.is_confirmed = false;
  link.attempt = next_attempt_++;
  ++services_.counters.connections;
  services_.timers.at(Clock::now() + services_.settings.handshake_timeout, [this, peer = link.peer, attempt = link.attempt] {
    Link* const found = find(peer);
    if (found != nullptr && found->attempt == attempt && found->endpoint != nullptr && !found->is_confirmed) {
      lose(*found, "it has not answered", true);
    }
  });
  greet(link);
}

void Links::greet(Link& link) {
  Greeting greeting;
  greeting.from = static_cast<uint32_t>(self_);
  greeting.token = link.token;
  greeting.about = link.their_token;
  greeting.proof = link.credentials.our_proof;
  send_head(link, Kind::kGreeting, {reinterpret_cast<const char*>(&greeting), sizeof greeting});
}

void Links::watch_process(Link& link) {
  const Process& process = link.credentials.process;
  if (process.pid == 0 || link.process) {
    return;
  }
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
  if (fd == -1) {
    if (errno == ESRCH) {
      throw TransportError(called(link.peer) + " is lost: its process has ended");
    }
    return;  // UCX's own checks remain
  }
  link.process = std::make_unique<Fd>(fd);
  if (start_of(process.pid) != process.start) {
    link.process.reset();
    throw TransportError(called(link.peer) + " is lost: its process has ended");
  }
  link.process_id = next_process_++;
  processes_[link.process_id] = link.peer;
  services_.inbox.watch(fd, link.process_id);
}

void Links::forget_process(Link& link) {
  if (link.process) {
    services_.inbox.unwatch(link.process->get());
    processes_.erase(link.process_id);
    link.process.reset();
  }
}

void Links::on_process_end(uint64_t id) {
  const auto found = processes_.find(id);
  Link* const link = found == processes_.end() ? nullptr : find(found->second);
  if (link == nullptr) {
    return;
  }
  // Handle what the peer sent before its goodbye.
  for (int i = 0; i < 1000 && progress(); ++i) {
  }
  Link* const still = find(link->peer);
  if (still == link) {
    end_incoming(*link);
    lose(*link, "its process has ended", false);
  }
}

void Links::greeted(const Greeting& greeting) {
  const std::string proof = text_of(greeting.proof);
  const auto known = proofs_.find(proof);
  if (known != proofs_.end()) {
    admit(known->second, greeting);
    return;
  }
  // The sender gets no answer, because its address is unknown. Its own time limit ends the attempt.
  const auto refuse = [this, from = greeting.from] {
    ++services_.counters.refused;
    services_.callback_thread.report("a process greets as worker " + std::to_string(from) +
                                     ", without the proof that it belongs to this group");
  };
  if (strangers_.size() >= kMostStrangers || !services_.callback_thread.can_look_up()) {
    refuse();
    return;
  }
  strangers_[proof] = greeting;
  const bool is_queued = services_.callback_thread.look_up(proof, [this, proof, refuse](std::optional<int> /*peer*/) {
    // Runs without the transport's lock, because the callback thread holds its own.
    {
      std::lock_guard<std::mutex> lock(answers_mutex_);
      answers_.push_back([this, proof, refuse] {
        // If the worker is known by now, learn() has already used the greeting.
        if (strangers_.erase(proof) != 0) {
          refuse();
        }
      });
      has_answers_ = true;
    }
    services_.inbox.nudge();
  });
  if (!is_queued) {
    strangers_.erase(proof);
    refuse();
  }
}

void Links::admit(int peer, const Greeting& greeting) {
  Link* const link = find(peer);
  if (link == nullptr || static_cast<int>(greeting.from) != peer || !greeting.token) {
    ++services_.counters.refused;
    return;
  }
  const bool is_new = !(link->their_token == greeting.token);
  if (is_new) {
    const bool again = static_cast<bool>(link->their_token);
    end_incoming(*link);
    link->their_token = greeting.token;
    tokens_[greeting.token] = peer;
    if (again && link->is_confirmed && !link->is_lost) {
      // Answers that the peer sent on its former link may be lost.
      report_lost(*link, "it has connected again");
      report_found(*link);
    }
  }
  const bool knows_ours = link->endpoint != nullptr && greeting.about == link->token;
  if (link->endpoint == nullptr) {
    try {
      open(*link);
    } catch (const TransportError& error) {
      lose(*link, error.what(), true);
      return;
    }
  } else if (is_new || !knows_ours) {
    greet(*link);
  }
  if (knows_ours && !link->is_confirmed) {
    confirm(*link);
  }
}

void Links::confirm(Link& link) {
  link.is_confirmed = true;
  link.failures = 0;
  if (link.is_lost) {
    report_found(link);
  }
  while (!link.queue.empty() && link.is_confirmed) {
    std::unique_ptr<Outgoing> first = std::move(link.queue.front());
    link.queue.pop_front();
    post(link, std::move(first));
  }
}

// --- ending -----------------------------------------------------------------------------------------

void Links::report_found(Link& link) {
  link.is_lost = false;
  ++services_.counters.found;
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = link.peer;
  services_.inbox.push(std::move(event));
}

void Links::report_lost(Link& link, const std::string& reason) {
  link.is_lost = true;
  link.reason = reason;
  ++services_.counters.lost;
  Event event;
  event.kind = Event::Kind::kLost;
  event.peer = link.peer;
  event.reason = reason;
  services_.inbox.push(std::move(event));
}

void Links::lose(Link& link, const std::string& reason, bool retry) {
  close_endpoint(link);
  link.is_confirmed = false;
  for (auto& queued : link.queue) {
    sent_.push_back(std::move(queued));
  }
  link.queue.clear();
  if (!link.is_lost) {
    report_lost(link, reason);
  }
  link.attempt = next_attempt_++;
  if (retry) {
    schedule_retry(link);
  }
}

void Links::schedule_retry(Link& link) {
  if (closing_) {
    return;
  }
  link.attempt = next_attempt_++;
  const auto longest = std::min(kLongestPause, kFirstPause * (1 << std::min(link.failures++, 10)));
  // Random, so that the workers do not all connect to a returning worker at the same moment.
  const auto wait = longest + longest * static_cast<int>(random_() % 50) / 100;
  services_.timers.at(Clock::now() + wait, [this, peer = link.peer, attempt = link.attempt] {
    Link* const found = find(peer);
    if (found == nullptr || found->attempt != attempt || found->endpoint != nullptr || closing_) {
      return;
    }
    try {
      open(*found);
    } catch (const TransportError&) {
      schedule_retry(*found);
    }
  });
}

void Links::end_incoming(Link& link) {
  tokens_.erase(link.their_token);
  link.their_token = Token();
  std::destroy_at(&link.incoming);
  std::construct_at(&link.incoming, services_.settings.max_message);
}

void Links::close_endpoint(Link& link) {
  if (link.endpoint == nullptr) {
    return;
  }
  // UCX aborts the process if an endpoint is destroyed while it copies from the peer's memory.
  const auto copies = [this, peer = link.peer] {
    return std::any_of(fetching_.begin(), fetching_.end(), [peer](const Fetch* one) { return one->peer == peer; });
  };
  for (const auto end = Clock::now() + kCopyTime; copies() && Clock::now() < end;) {
    if (ucp_worker_progress(worker_.get()) == 0) {
      break;  // it waits for the peer, and does not copy
    }
  }
  endpoints_.erase(link.endpoint);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &on_closed;
  param.user_data = this;
  ++closing_endpoints_;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(link.endpoint, nullptr), &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    --closing_endpoints_;
  } else {
    services_.inbox.nudge();
  }
  link.token = Token();
}

void Links::say_goodbye(Link& link, bool comes_back, const std::string& reason) {
  if (link.endpoint == nullptr) {
    return;
  }
  Goodbye head;
  head.token = link.token;
  head.complete = link.next_number;
  for (const Outgoing* const outgoing : leaving_) {
    if (outgoing->peer == link.peer) {
      head.complete = std::min(head.complete, outgoing->number);
    }
  }
  head.comes_back = comes_back ? 1 : 0;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
  bytes += reason.substr(0, kLongestReason);
  send_head(link, Kind::kGoodbye, std::move(bytes));
}

void Links::goodbye(const Goodbye& head, const std::string& reason) {
  Link* const link = owner_of(head.token);
  if (link == nullptr) {
    return;
  }
  deliver_below(checked_, link->peer, head.complete);
  deliver_below(fetched_, link->peer, head.complete);
  if (owner_of(head.token) != link) {
    return;  // one of these messages was malformed
  }
  end_incoming(*link);
  lose(*link, reason, head.comes_back != 0);
}

void Links::reject(int peer, const std::string& reason) {
  Link* const link = find(peer);
  if (link == nullptr || link->endpoint == nullptr) {
    return;  // there is no connection to close
  }
  ++services_.counters.rejected;
  services_.callback_thread.report("the connection to " + called(peer) + " is closed: " + reason);
  say_goodbye(*link, true, "it has closed the connection: " + reason);
  end_incoming(*link);
  lose(*link, "rejected: " + reason, false);
}

void Links::close(Clock::time_point deadline) {
  closing_ = true;
  const auto wait = [this, deadline](const auto& is_over) {
    while (!is_over() && Clock::now() < deadline) {
      if (!progress()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  };
  wait([this] {
    return leaving_.empty() && std::all_of(links_.begin(), links_.end(), [](auto& one) { return one.second->queue.empty(); });
  });
  for (auto& [peer, link] : links_) {
    say_goodbye(*link, false, "it has closed the connection");
  }
  const auto least = Clock::now() + std::chrono::milliseconds(200);
  while (!leaving_.empty() && Clock::now() < std::max(deadline, least)) {
    progress();
  }
  for (auto& [peer, link] : links_) {
    close_endpoint(*link);
    forget_process(*link);
  }
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (closing_endpoints_ > 0 && Clock::now() < end) {
    progress();
  }
}

void Links::on_error(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto& links = *static_cast<Links*>(self);
  links.run_later([&links, endpoint, status, line = take_log_line()] {
    const auto found = links.endpoints_.find(endpoint);
    Link* const link = found == links.endpoints_.end() ? nullptr : links.find(found->second);
    if (link != nullptr && link->endpoint == endpoint) {
      links.lose(*link, "the connection has failed: " + ucx::text_of(status), true);
    }
  });
}

void Links::on_closed(void* request, ucs_status_t /*status*/, void* self) {
  --static_cast<Links*>(self)->closing_endpoints_;
  ucp_request_free(request);
}

// --- sending ----------------------------------------------------------------------------------------

void Links::send(int peer, Parts parts) {
  Link* const link = find(peer);
  if (self_ == -1 || link == nullptr) {
    throw TransportError(self_ == -1 ? "the transport has not been started" : called(peer) + " is not known to this worker");
  }
  if (link->is_lost) {
    throw TransportError(called(peer) + " is lost: " + link->reason);
  }
  uint64_t bytes = 0;
  for (const Part& part : parts) {
    bytes += part.size;
  }
  if (bytes > link->credentials.max_message) {
    throw TransportError("a message of " + std::to_string(bytes) + " bytes is larger than the " +
                         std::to_string(link->credentials.max_message) + " that " + called(peer) +
                         " takes (its max_message_bytes)");
  }
  auto outgoing = std::make_unique<Outgoing>(std::move(parts), max_header_);
  outgoing->links = this;
  if (link->endpoint == nullptr) {
    open(*link);
  }
  if (link->is_confirmed) {
    post(*link, std::move(outgoing));
  } else {
    link->queue.push_back(std::move(outgoing));
  }
  services_.inbox.expect_traffic();
}

void Links::post(Link& link, std::unique_ptr<Outgoing> owned) {
  Outgoing& outgoing = *owned;
  outgoing.peer = link.peer;
  outgoing.number = link.next_number;
  const auto pieces = outgoing.pieces(link.token, link.next_number++);
  outgoing.pending = 1;
  leaving_.insert(owned.release());
  for (const Outgoing::Piece& piece : pieces) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
        UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.send = &on_sent;
    param.user_data = &outgoing;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    const uint64_t rendezvous = services_.settings.rendezvous;
    param.flags = rendezvous != 0 && piece.size > rendezvous ? UCP_AM_SEND_FLAG_RNDV : 0;
    ++outgoing.pending;
    const ucs_status_ptr_t request = ucp_am_send_nbx(link.endpoint, static_cast<unsigned>(piece.kind), piece.header,
                                                     piece.header_size, piece.data, piece.size, &param);
    if (request == nullptr) {
      --outgoing.pending;
    } else if (UCS_PTR_IS_ERR(request)) {
      --outgoing.pending;
      const std::string reason = "the connection has failed: " + ucx::text_of(UCS_PTR_STATUS(request));
      run_later([this, peer = link.peer, attempt = link.attempt, reason] {
        Link* const found = find(peer);
        if (found != nullptr && found->attempt == attempt) {
          lose(*found, reason, true);
        }
      });
      services_.inbox.nudge();
      break;
    }
  }
  ++services_.counters.messages_sent;
  if (outgoing.pending > 1) {
    services_.releaser.hold(outgoing.parts);
    // UCX does not signal that there is room for the rest, so a thread must poll.
    services_.inbox.nudge();
  }
  completed(outgoing);
}

void Links::completed(Outgoing& outgoing) {
  if (--outgoing.pending != 0 || leaving_.erase(&outgoing) == 0) {
    return;
  }
  if (!outgoing.has_failed) {
    sent_.emplace_back(&outgoing);
    return;
  }
  services_.timers.at(Clock::now() + kReadTime, [this, kept = std::make_shared<std::unique_ptr<Outgoing>>(&outgoing)] {
    sent_.push_back(std::move(*kept));
  });
}

void Links::send_head(Link& link, Kind kind, std::string bytes) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* /*none*/) { ucp_request_free(request); };
  const ucs_status_ptr_t request = ucp_am_send_nbx(link.endpoint, static_cast<unsigned>(kind), bytes.data(),
                                                   bytes.size(), nullptr, 0, &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) {
    services_.inbox.nudge();
  }
}

void Links::on_sent(void* request, ucs_status_t status, void* argument) {
  Outgoing& outgoing = *static_cast<Outgoing*>(argument);
  // After a failed send, UCX reports the error of the endpoint, unless the endpoint was closed.
  outgoing.has_failed = outgoing.has_failed || status != UCS_OK;
  ucp_request_free(request);
  outgoing.links->completed(outgoing);
}

void Links::take_sent(std::vector<std::unique_ptr<Outgoing>>& sent) {
  sent.swap(sent_);
}

// --- receiving --------------------------------------------------------------------------------------

bool Links::progress() {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  if (has_answers_.exchange(false)) {
    std::lock_guard<std::mutex> lock(answers_mutex_);
    std::move(answers_.begin(), answers_.end(), std::back_inserter(later_));
    answers_.clear();
  }
  busy = do_later() || busy;
  while (!fetched_.empty()) {
    deliver_fetched();
    busy = true;
  }
  return busy;
}

bool Links::do_later() {
  bool any = false;
  while (!later_.empty()) {
    const std::function<void()> task = std::move(later_.front());
    later_.pop_front();
    task();
    any = true;
  }
  return any;
}

ucs_status_t Links::on_greeting(void* self, const void* header, size_t header_size, void* /*data*/, size_t /*size*/,
                                const ucp_am_recv_param_t* /*param*/) {
  auto& links = *static_cast<Links*>(self);
  Greeting greeting;
  if (header_size == sizeof greeting) {
    std::memcpy(&greeting, header, sizeof greeting);
  }
  if (header_size != sizeof greeting || greeting.magic != kMagic || greeting.from > INT32_MAX) {
    ++links.services_.counters.refused;
    return UCS_OK;
  }
  links.run_later([&links, greeting] { links.greeted(greeting); });
  return UCS_OK;
}

ucs_status_t Links::on_goodbye(void* self, const void* header, size_t header_size, void* /*data*/, size_t /*size*/,
                               const ucp_am_recv_param_t* /*param*/) {
  auto& links = *static_cast<Links*>(self);
  Goodbye head;
  if (header_size < sizeof head || header_size > sizeof head + kLongestReason) {
    return UCS_OK;
  }
  std::memcpy(&head, header, sizeof head);
  std::string reason(static_cast<const char*>(header) + sizeof head, header_size - sizeof head);
  links.run_later([&links, head, reason = std::move(reason)] { links.goodbye(head, reason); });
  return UCS_OK;
}

template <Kind kind>
ucs_status_t Links::on_message(void* self, const void* header, size_t header_size, void* data, size_t size,
                               const ucp_am_recv_param_t* param) {
  const bool is_fetched = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  return static_cast<Links*>(self)->take(kind, header, header_size, data, size, is_fetched);
}

ucs_status_t Links::take(Kind kind, const void* header, size_t header_size, void* data, size_t size, bool is_fetched) {
  Token token;
  if (header_size >= sizeof token) {
    std::memcpy(&token, header, sizeof token);
  }
  Link* const link = token ? owner_of(token) : nullptr;
  if (link == nullptr) {
    ++services_.counters.dropped;
    return is_fetched ? UCS_ERR_REJECTED : UCS_OK;
  }
  std::string wrong;
  bool is_taken = false;  // UCX owns `data` again
  try {
    Incoming::Target target = kind == Kind::kMessage ? link->incoming.message(header, header_size, size)
                                                     : link->incoming.part(header, header_size, size);
    if (!is_fetched) {
      if (size != 0) {
        std::memcpy(const_cast<void*>(target.memory.data), data, size);
      }
      deliver(*link, target);
      return UCS_OK;
    }
    auto owned = std::make_unique<Fetch>(Fetch{this, link->peer, token, std::move(target)});
    Fetch* const fetch = owned.get();
    fetching_.insert(fetch);
    owned.release();
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param.cb.recv_am = &on_fetched;
    param.user_data = fetch;
    param.memory_type = UCS_MEMORY_TYPE_HOST;
    is_taken = true;
    // UCX may call on_fetched() in here, which deletes `fetch`, and still return a request.
    const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
        worker_.get(), data, const_cast<void*>(fetch->target.memory.data), size, &param);
    if (request == nullptr || UCS_PTR_IS_ERR(request)) {
      fetching_.erase(fetch);
      owned.reset(fetch);
      if (request != nullptr) {
        throw Malformed("a message cannot be fetched: " + ucx::text_of(UCS_PTR_STATUS(request)));
      }
      fetched_.push_back(std::move(*fetch));
    }
    return UCS_INPROGRESS;
  } catch (const Malformed& error) {
    wrong = error.what();
  } catch (const std::bad_alloc&) {
    wrong = "not enough memory for a message";
  }
  run_later([this, peer = link->peer, token, wrong] {
    Link* const found = owner_of(token);
    if (found != nullptr && found->peer == peer) {
      reject(peer, wrong);
    }
  });
  return is_taken ? UCS_INPROGRESS : is_fetched ? UCS_ERR_REJECTED : UCS_OK;
}

void Links::on_fetched(void* request, ucs_status_t status, size_t /*size*/, void* argument) {
  ucp_request_free(request);
  const std::unique_ptr<Fetch> fetch(static_cast<Fetch*>(argument));
  Links& links = *fetch->links;
  links.fetching_.erase(fetch.get());
  if (status == UCS_OK) {
    links.fetched_.push_back(std::move(*fetch));
    return;
  }
  links.run_later([&links, token = fetch->token, wrong = "a message cannot be fetched: " + ucx::text_of(status)] {
    if (const Link* const link = links.owner_of(token)) {
      links.reject(link->peer, wrong);
    }
  });
}

// Delivers data that was copied from the memory of peers. A peer that gives up this memory first sends a goodbye, which
// names the messages that were read before. So all copied data is checked against the goodbyes that have arrived since.
void Links::deliver_fetched() {
  std::move(fetched_.begin(), fetched_.end(), std::back_inserter(checked_));
  fetched_.clear();
  for (int i = 0; i < kDrain && ucp_worker_progress(worker_.get()) != 0; ++i) {
  }
  do_later();
  deliver_below(checked_, kEveryPeer, UINT64_MAX);
}

void Links::deliver_below(std::vector<Fetch>& fetches, int peer, uint64_t number) {
  std::vector<Fetch> all;
  all.swap(fetches);
  for (Fetch& fetch : all) {
    if (peer != kEveryPeer && (fetch.peer != peer || fetch.target.number >= number)) {
      fetches.push_back(std::move(fetch));
      continue;
    }
    Link* const link = owner_of(fetch.token);
    if (link == nullptr) {
      continue;
    }
    try {
      deliver(*link, fetch.target);
    } catch (const Malformed& error) {
      reject(link->peer, error.what());
    } catch (const std::bad_alloc&) {
      reject(link->peer, "not enough memory for a message");
    }
  }
}

void Links::deliver(Link& link, const Incoming::Target& target) {
  std::vector<Parts> complete;
  link.incoming.filled(target, complete);
  for (Parts& parts : complete) {
    ++services_.counters.messages_received;
    Event event;
    event.peer = link.peer;
    event.parts = std::move(parts);
    services_.inbox.push(std::move(event));
  }
}

std::map<int, std::string> Links::transports() const {
  std::map<int, std::string> found;
  for (const auto& [peer, link] : links_) {
    if (link->endpoint != nullptr && link->is_confirmed) {
      found[peer] = transports_of(link->endpoint);
    }
  }
  return found;
}

}  // namespace rpc_backends::ucx
