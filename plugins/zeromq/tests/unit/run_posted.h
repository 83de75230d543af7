// Waits for an event loop.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>

#include "event_loop.h"

namespace rpc_backends::zeromq {

// Returns once the event loop has run what was posted before.
inline void run_posted(EventLoop& loop) {
  const auto done = std::make_shared<std::promise<void>>();
  loop.post([done] { done->set_value(); });
  // No passing test waits that long.
  ASSERT_EQ(done->get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace rpc_backends::zeromq
