#include "asker.h"

#include <utility>

#include "thread.h"

namespace rpc_backends::zeromq {

namespace {

// Whoever knocks makes these; nobody fills the memory with them.
constexpr size_t kMostTasks = 1000;

}  // namespace

Asker::Asker(OnUnknownKey on_unknown_key, OnRefused on_refused)
    : on_unknown_key_(std::move(on_unknown_key)), on_refused_(std::move(on_refused)) {
  if (on_unknown_key_ || on_refused_) {
    thread_ = start_thread("rpc-zmq-asker", [this] { live(); });
  }
}

bool Asker::ask(const std::string& key, Answer answer) {
  return can_ask() && add([this, key, answer = std::move(answer)] { answer(on_unknown_key_(key)); });
}

void Asker::tell(const std::string& line) {
  if (on_refused_) {
    add([this, line] { on_refused_(line); });
  }
}

bool Asker::add(std::function<void()> task) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_ || tasks_.size() >= kMostTasks) {
      return false;
    }
    tasks_.push_back(std::move(task));
  }
  added_.notify_one();
  return true;
}

void Asker::live() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return stopped_ || !tasks_.empty(); });
    if (stopped_) {
      return;
    }
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

void Asker::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
  }
  added_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

}  // namespace rpc_backends::zeromq
