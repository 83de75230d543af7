#include "front/tensorpipe_requests.h"

#include <torch/csrc/distributed/rpc/request_callback.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "inspect/request_inspector.h"
#include "rpc/early_deletions.h"

namespace rpc_backends {

namespace rpc = torch::distributed::rpc;

namespace {

// After the context: its size, the id of the caller, and these bytes.
constexpr std::string_view kMark = "\x01rpcspan\x02";
constexpr size_t kTail = 1 + sizeof(int32_t) + kMark.size();

// The end of the request itself in a payload: torch puts wrappers around a request by adding bytes at the end.
std::vector<char>::iterator end_of_request(rpc::Message& message) {
  const std::string_view inner = inspect(message).payload;
  return message.payload().begin() + (inner.data() + inner.size() - message.payload().data());
}

struct Arrived {
  SpanContext context;
  int32_t worker = -1;
};

// Takes the context out of a request. Without one, the trace is not sampled: TensorPipe's requests say nothing else.
Arrived take_span(rpc::Message& message) {
  Arrived arrived;
  arrived.context.sampling = SpanContext::Sampling::kDropped;
  const auto end = end_of_request(message);
  const std::string_view bytes(message.payload().data(), static_cast<size_t>(end - message.payload().begin()));
  if (bytes.size() < kTail || bytes.substr(bytes.size() - kMark.size()) != kMark) {
    return arrived;
  }
  const std::string_view tail = bytes.substr(bytes.size() - kTail);
  const size_t size = static_cast<unsigned char>(tail[0]);
  if (bytes.size() < kTail + size) {
    return arrived;
  }
  arrived.context = read_span(bytes.substr(bytes.size() - kTail - size, size));
  std::memcpy(&arrived.worker, tail.data() + 1, sizeof arrived.worker);
  message.payload().erase(end - static_cast<std::ptrdiff_t>(kTail + size), end);
  return arrived;
}

class Watching final : public rpc::RequestCallback {
 public:
  Watching(std::unique_ptr<rpc::RequestCallback> inner, std::shared_ptr<CallLog> log)
      : inner_(std::move(inner)), log_(std::move(log)) {}

 protected:
  c10::intrusive_ptr<rpc::JitFuture> processMessage(rpc::Message& request,
                                                    std::vector<c10::Stream> streams) const override {
    const Arrived arrived = take_span(request);
    CallLog::Place* const place = log_->begin_incoming(arrived.worker, request, 0, arrived.context);
    if (place == nullptr) {
      return (*inner_)(request, std::move(streams));
    }
    const auto asked = watch_classes(request);
    c10::intrusive_ptr<rpc::JitFuture> answer;
    try {
      const InSpan scope(place->span.context);
      answer = (*inner_)(request, std::move(streams));
    } catch (const std::exception& error) {
      log_->failed(place, error.what());
      throw;
    }
    if (asked) {  // before the agent's own callback, which sends the answer
      answer->addCallback([rref = *asked](rpc::JitFuture& done) { learn_class(rref, done); });
    }
    CallLog::end_with(log_, place, *answer);
    return answer;
  }

 private:
  const std::unique_ptr<rpc::RequestCallback> inner_;
  const std::shared_ptr<CallLog> log_;
};

// Does early deletions of RRefs again.
class Settling final : public rpc::RequestCallback {
 public:
  explicit Settling(std::unique_ptr<rpc::RequestCallback> inner)
      : inner_(std::move(inner)), deletions_(std::make_shared<EarlyDeletions>(inner_)) {}

 protected:
  c10::intrusive_ptr<rpc::JitFuture> processMessage(rpc::Message& request,
                                                    std::vector<c10::Stream> streams) const override {
    deletions_->note(request);
    const auto created = created_rref(inspect(request));
    if (!created) {
      return (*inner_)(request, std::move(streams));
    }
    const auto creation = std::make_shared<const EarlyDeletions::Creation>(deletions_, created->id, created->fork);
    auto answer = (*inner_)(request, std::move(streams));
    creation->settle();
    answer->addCallback([creation](rpc::JitFuture& /*done*/) { creation->settle(); });
    return answer;
  }

 private:
  const std::shared_ptr<const rpc::RequestCallback> inner_;
  const std::shared_ptr<EarlyDeletions> deletions_;
};

// The callback is protected in torch's class.
struct Callback : rpc::RpcAgent {
  static constexpr auto kMember = &Callback::cb_;
};

// Torch declares the member const and has no other way to see requests. The agent reads it for each request that
// arrives, and none arrives before its start.
std::unique_ptr<rpc::RequestCallback>& callback_of(rpc::RpcAgent& agent) {
  return const_cast<std::unique_ptr<rpc::RequestCallback>&>(agent.*Callback::kMember);
}

}  // namespace

void append_span(rpc::Message& request, const SpanContext& context, int worker) {
  const std::string bytes = write_span(context);
  const auto id = static_cast<int32_t>(worker);
  std::string tail = bytes;
  tail.push_back(static_cast<char>(bytes.size()));
  tail.append(reinterpret_cast<const char*>(&id), sizeof id);
  tail.append(kMark);
  const auto end = end_of_request(request);
  request.payload().insert(end, tail.begin(), tail.end());
}

void watch_requests(rpc::RpcAgent& agent, std::shared_ptr<CallLog> log) {
  auto& callback = callback_of(agent);
  callback = std::make_unique<Watching>(std::move(callback), std::move(log));
}

void settle_early_deletions(rpc::RpcAgent& agent) {
  auto& callback = callback_of(agent);
  callback = std::make_unique<Settling>(std::move(callback));
}

}  // namespace rpc_backends
