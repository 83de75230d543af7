// The messages that are leaving: UCX reads their memory until they are sent completely. Needs the transport's lock.
#pragma once

#include <memory>
#include <string>

#include "outgoing.h"
#include "services.h"

namespace rpc_backends::ucx {

class Outbox {
 public:
  explicit Outbox(const Services& services) : services_(services) {}
  ~Outbox();
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Gives a message to UCX, as message `number` of the link with this token. Returns UCX's error if the connection has
  // failed. Throws std::bad_alloc only before UCX has any of the message: the number is then unused, and the caller
  // keeps the message.
  ucs_status_t post(ucp_ep_h endpoint, int peer, wire::Token token, uint64_t number, std::unique_ptr<Outgoing>&& owned);
  // Sends a greeting or a goodbye, and data after it.
  void send_head(ucp_ep_h endpoint, wire::Kind kind, const std::string& bytes, std::string data = {});

  // The smallest number of a small message, or of a large one, to this peer that is still leaving, if it is smaller
  // than `next`, the number of the next one.
  uint64_t first_leaving(int peer, uint64_t next) const;
  bool is_leaving() const { return !leaving_.empty(); }

  // Moves messages that need no memory any more to `sent`, so that the caller releases them without the lock.
  void take_sent(Messages& sent) { sent.swap(sent_); }
  bool has_sent() const { return !sent_.empty(); }
  // Treats messages that are not sent at all in the same way.
  void drop(Messages& unsent) { sent_.splice(sent_.end(), unsent); }

 private:
  static void on_sent(void* request, ucs_status_t status, void* outgoing);
  void completed(Outgoing& outgoing);

  const Services& services_;
  Messages leaving_;
  Messages failed_;  // their receivers may still copy them
  Messages sent_;
};

}  // namespace rpc_backends::ucx
