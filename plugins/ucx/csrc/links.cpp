#include "links.h"  // opening and ending links; links_messages.cpp sends and receives

#include <poll.h>
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

#include "link.h"

namespace rpc_backends::ucx {

using namespace wire;

namespace {

// The time between two attempts to reach a lost peer. It doubles after each attempt.
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{5000};
// How long the end of a process may be seen after its sockets are closed.
constexpr int kExitMilliseconds = 50;
// How long a copy from the memory of a peer may take before its connection is closed anyway.
constexpr std::chrono::seconds kCopyTime{5};
// The most greetings that wait for a lookup. Unknown processes can send them, so there is a limit.
constexpr size_t kMostStrangers = 1000;
// Copying parts into the header of an active message is worth it up to this many bytes.
constexpr size_t kLongestHeader = 6144;
// When the transport is closed: how long goodbyes may take at least, and how long UCX may take to close its endpoints.
constexpr std::chrono::milliseconds kGoodbyeTime{200};
constexpr std::chrono::seconds kCloseTime{1};
// How long to sleep between two calls of progress() that find nothing to do.
constexpr std::chrono::microseconds kFirstSleep{50};
constexpr std::chrono::microseconds kLongestSleep{1000};

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

// Whether a process ends within so many milliseconds; also if its parent has not waited for it yet.
bool has_ended(int process_fd, int milliseconds) {
  pollfd end{process_fd, POLLIN, 0};
  return poll(&end, 1, milliseconds) == 1;
}

}  // namespace

Links::Links(const Services& services, Worker& worker)
    : services_(services), worker_(worker), max_header_(std::min(worker.max_header(), kLongestHeader)) {
  worker_.handle(Kind::kGreeting, &on_greeting, this);
  worker_.handle(Kind::kGoodbye, &on_goodbye, this);
  worker_.handle(Kind::kMessage, &on_message<Kind::kMessage>, this);
  worker_.handle(Kind::kPart, &on_message<Kind::kPart>, this);
  worker_.handle(Kind::kDevicePart, &on_message<Kind::kDevicePart>, this);
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
                        link->credentials.our_proof == credentials.our_proof &&
                        link->credentials.their_proof == credentials.their_proof;
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
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(link.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &on_error;
  params.err_handler.arg = this;
  watch_process(link);
  take_log_line();
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &link.endpoint);
  // A process closes its sockets and its memory shortly before its end is seen.
  if (status != UCS_OK && link.process && has_ended(link.process->get(), kExitMilliseconds)) {
    forget_process(link);
    throw TransportError(called(link.peer) + " is lost: its process has ended");
  }
  check(status, called(link.peer) + " cannot be reached");
  endpoints_[link.endpoint] = link.peer;
  link.token = new_token();
  link.next_number = 0;
  link.is_confirmed = false;
  link.attempt = next_attempt_++;
  ++services_.counters.connections;
  services_.timers.at(
      Clock::now() + services_.settings.handshake_timeout, [this, peer = link.peer, attempt = link.attempt] {
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
  if (has_ended(fd, 0) || start_of(process.pid) != process.start) {
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
  // Handle what the peer sent before its end.
  for (int i = 0; i < 1000 && progress(); ++i) {
  }
  // Looked up only now, because progress() may have removed the link.
  const auto found = processes_.find(id);
  Link* const link = found == processes_.end() ? nullptr : find(found->second);
  if (link != nullptr) {
    forget_process(*link);
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
    tokens_[greeting.token] = peer;  // may throw; then a later greeting is new again
    link->their_token = greeting.token;
    if (again && link->is_confirmed && !link->is_lost) {
      // Answers that the peer sent on its former link may be lost.
      const std::string reason = "it has connected again";
      if (greeting.about == link->token) {
        report_lost(*link, reason);
        report_found(*link);
      } else {
        lose(*link, reason, false);  // it has given up this worker's link, perhaps without a goodbye that arrived
      }
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
  Event event;
  event.kind = Event::Kind::kFound;
  event.peer = link.peer;
  services_.inbox.push(std::move(event));
  link.is_lost = false;
  ++services_.counters.found;
}

void Links::report_lost(Link& link, const std::string& reason) {
  Event event;
  event.kind = Event::Kind::kLost;
  event.peer = link.peer;
  event.reason = reason;
  link.reason = reason;
  services_.inbox.push(std::move(event));  // may throw, and the link is lost only if that is known
  link.is_lost = true;
  ++services_.counters.lost;
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
  progress_until(deadline, [this] {
    return leaving_.empty() &&
           std::all_of(links_.begin(), links_.end(), [](auto& one) { return one.second->queue.empty(); });
  });
  for (auto& [peer, link] : links_) {
    say_goodbye(*link, false, "it has closed the connection");
    flush(*link);
  }
  // An endpoint that is closed by force drops what has not left, so wait for the goodbyes.
  progress_until(std::max(deadline, Clock::now() + kGoodbyeTime), [this] { return flushing_endpoints_ == 0; });
  for (auto& [peer, link] : links_) {
    close_endpoint(*link);
    forget_process(*link);
  }
  progress_until(Clock::now() + kCloseTime, [this] { return closing_endpoints_ == 0; });
}

template <typename IsOver>
void Links::progress_until(Clock::time_point deadline, const IsOver& is_over) {
  auto pause = kFirstSleep;
  while (!is_over() && Clock::now() < deadline) {
    if (progress()) {
      pause = kFirstSleep;
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, kLongestSleep);
    }
  }
}

void Links::flush(Link& link) {
  if (link.endpoint == nullptr) {
    return;
  }
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &on_flushed;
  param.user_data = this;
  ++flushing_endpoints_;
  const ucs_status_ptr_t request = ucp_ep_flush_nbx(link.endpoint, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) {
    --flushing_endpoints_;
  }
}

void Links::on_flushed(void* request, ucs_status_t /*status*/, void* self) {
  --static_cast<Links*>(self)->flushing_endpoints_;
  ucp_request_free(request);
}

void Links::on_error(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto& links = *static_cast<Links*>(self);
  const auto owner = [&links, endpoint] {
    const auto found = links.endpoints_.find(endpoint);
    Link* const link = found == links.endpoints_.end() ? nullptr : links.find(found->second);
    return link != nullptr && link->endpoint == endpoint ? link : nullptr;
  };
  take_log_line();
  try {
    links.run_later([&links, owner, status] {
      if (Link* const link = owner()) {
        links.lose(*link, "the connection has failed: " + ucx::text_of(status), true);
      }
    });
  } catch (const std::bad_alloc&) {
    links.mark_broken(owner());
  }
}

void Links::mark_broken(Link* link) noexcept {
  if (link != nullptr) {
    link->is_broken = true;
    has_broken_ = true;
  }
}

void Links::end_broken() {
  for (auto& [peer, link] : links_) {
    if (link->is_broken) {
      const std::string reason = "not enough memory for a message";
      say_goodbye(*link, true, "it has closed the connection: " + reason);
      end_incoming(*link);
      lose(*link, reason, true);
      link->is_broken = false;
    }
  }
  has_broken_ = false;  // only now, because reject() may throw
}

void Links::on_closed(void* request, ucs_status_t /*status*/, void* self) {
  --static_cast<Links*>(self)->closing_endpoints_;
  ucp_request_free(request);
}

}  // namespace rpc_backends::ucx
