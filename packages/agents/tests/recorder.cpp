// The interceptor of the tests: it follows orders and records what it sees. It is used through ctypes, so it is
// compiled as C++17 against interceptor.h only.
#include <rpc_backends_agents/interceptor.h>

#include <mutex>
#include <stdexcept>

using namespace rpc_backends;

namespace {

// Orders by topic: "outgoing", "incoming" and "answer" have verbs, "context" has bytes to attach.
using Orders = std::map<std::string, std::string>;

class Recorder;

struct Watch final : Observer {
  explicit Watch(Recorder& recorder) : recorder(recorder) {}
  void on_answer(AnswerPtr answer) override;
  void on_end(const End& end) override;
  Recorder& recorder;  // the test keeps it alive
};

class Recorder final : public Interceptor {
 public:
  void on_start(const AgentInfo& agent) override { note("start " + std::string(agent.worker)); }
  void on_settle() override { note("settle"); }
  void on_stop() override { note("stop"); }
  Metrics metrics() const override { return {{"events", "many"}}; }

  void on_request(RequestPtr request) override {
    const RequestHead& head = request->head();
    if (!calls_function(head.type())) {
      request->pass();
      return;
    }
    const bool outgoing = head.direction() == Direction::kOutgoing;
    const Orders orders = this->orders();
    note(std::string(outgoing ? "outgoing " : "incoming ") + type_name(head.type()) + " " +
         std::string(head.function()) + " " + std::string(head.worker()) + " " + std::string(head.peer()) + " '" +
         std::string(request->context()) + "' " + std::to_string(head.tensors()) + " " +
         std::to_string(head.tensor_bytes()));
    if (orders.count("observe") != 0) {
      request->observe(std::make_shared<Watch>(*this));
    }
    if (outgoing && orders.count("context") != 0) {
      attempt([&] { request->attach(orders.at("context")); });
    }
    const auto entry = orders.find(outgoing ? "outgoing" : "incoming");
    decide(request, entry == orders.end() ? "pass" : entry->second);
  }

  void decide(const RequestPtr& request, const std::string& verb) {
    if (verb == "hold") {
      const std::lock_guard<std::mutex> lock(mutex_);
      held_.push_back(request);
    } else if (verb == "repeat") {
      request->repeat(3);
    } else if (verb == "drop") {
      request->drop();
    } else if (verb == "fail") {
      request->fail("refused by the recorder", ErrorKind::kIntentional);
    } else if (verb == "answer") {
      request->answer(last_type_, last_payload_);
    } else if (verb == "throw") {
      throw std::runtime_error("the recorder has thrown");
    } else if (verb != "let go") {
      request->pass();
      if (verb == "pass twice") {
        attempt([&] { request->pass(); });
        attempt([&] { request->head().digest(); });
      }
    }
  }

  void release() {
    std::vector<RequestPtr> held;
    std::vector<AnswerPtr> answers;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      held.swap(held_);
      answers.swap(answers_);
    }
    for (const auto& request : held) {
      request->pass();
    }
    for (const auto& answer : answers) {
      answer->pass();
    }
  }

  void answered(const AnswerPtr& answer) {
    note(answer->is_error() ? "answer error " + std::string(answer->error())
                            : "answer " + std::to_string(answer->type()));
    const Orders orders = this->orders();
    const auto entry = orders.find("answer");
    const std::string verb = entry == orders.end() ? "pass" : entry->second;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last_type_ = answer->type();
      last_payload_ = answer->payload();
      if (verb == "hold") {
        answers_.push_back(answer);
        return;
      }
    }
    if (verb == "drop") {
      answer->drop();
    } else if (verb == "fail") {
      answer->fail("replaced by the recorder");
    } else {
      answer->pass();
    }
  }

  template <typename Do>
  void attempt(Do what) {
    try {
      what();
    } catch (const std::logic_error& error) {  // std::length_error is one
      note(std::string("misuse ") + error.what());
    }
  }

  void note(const std::string& event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_ += event + "\n";
  }

  void order(const std::string& what, const std::string& how) {
    const std::lock_guard<std::mutex> lock(mutex_);
    orders_[what] = how;
  }

  Orders orders() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return orders_;
  }

  std::string events() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  Orders orders_;
  std::string events_;
  std::vector<RequestPtr> held_;
  std::vector<AnswerPtr> answers_;
  int32_t last_type_ = 0;
  std::string last_payload_;
};

void Watch::on_answer(AnswerPtr answer) {
  recorder.answered(answer);
}

void Watch::on_end(const End& end) {
  const char* const kinds[] = {"answer", "error", "timeout", "shutdown", "dropped"};
  recorder.note(std::string("end ") + kinds[static_cast<int>(end.kind)] + " " + std::string(end.text));
}

Recorder& of(void* handle) {
  return static_cast<Recorder&>(**static_cast<std::shared_ptr<Interceptor>*>(handle));
}

}  // namespace

extern "C" {

// A std::shared_ptr<Interceptor>*, for a capsule; never freed.
void* recorder_new() {
  return new std::shared_ptr<Interceptor>(std::make_shared<Recorder>());
}

const char* recorder_capsule_name() {
  return kInterceptorCapsule;
}

void recorder_order(void* handle, const char* what, const char* how) {
  of(handle).order(what, how);
}

void recorder_release(void* handle) {
  of(handle).release();
}

// Writes the events as a zero-terminated text, cut to `room` bytes; returns its full size.
size_t recorder_events(void* handle, char* text, size_t room) {
  const std::string events = of(handle).events();
  text[events.copy(text, room - 1)] = 0;
  return events.size();
}
}
