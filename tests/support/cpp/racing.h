// What the inboxes of all engines do when threads race for events.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "parts.h"
#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

inline Event event_of(int peer) {
  Event event;
  event.peer = peer;
  return event;
}

// No passing test waits that long.
inline std::chrono::steady_clock::time_point limit() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

// `push_all` pushes `count` events, each with another peer, while four threads receive them.
template <typename Inbox>
void expect_each_event_on_one_thread(Inbox& inbox, size_t count, const std::function<void()>& push_all) {
  std::mutex mutex;
  std::multiset<int> peers;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Event taken;
      while (inbox.receive(taken, limit()) == Received::kEvent) {
        const std::lock_guard<std::mutex> lock(mutex);
        peers.insert(taken.peer);
        if (peers.size() == count) {
          inbox.close();
        }
      }
    });
  }
  push_all();
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(peers.size(), count);
  EXPECT_EQ(std::set<int>(peers.begin(), peers.end()).size(), count);
}

// The memory of events that no thread has taken, and of those that are pushed later, is released at once.
template <typename Inbox>
void expect_close_to_release_events(Inbox& inbox) {
  const auto push = [&inbox] {
    Event event = event_of(1);
    event.parts = parts_with({"data"});
    std::weak_ptr<void> owner = event.parts[0].owner;
    inbox.push(std::move(event));
    return owner;
  };
  const auto before = push();
  EXPECT_FALSE(before.expired());
  inbox.close();
  EXPECT_TRUE(before.expired());
  EXPECT_TRUE(push().expired());
}

// All threads that wait in receive() return, and what is pushed later is dropped.
template <typename Inbox>
void expect_close_to_end_all_threads(Inbox& inbox) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Event ignored;
      EXPECT_EQ(inbox.receive(ignored, std::chrono::steady_clock::time_point::max()), Received::kClosed);
    });
  }
  inbox.close();
  for (std::thread& thread : threads) {
    thread.join();
  }
  inbox.push(event_of(1));
  Event event;
  EXPECT_EQ(inbox.receive(event, limit()), Received::kClosed);
}

}  // namespace rpc_backends
