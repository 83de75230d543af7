// The greetings of peers: who a peer is, that its messages may come, and that it has answered this worker's greeting.
// Needs the transport's lock.
#pragma once

#include "deferred_tasks.h"
#include "link_table.h"
#include "opening.h"
#include "sender.h"
#include "services.h"
#include "strangers.h"
#include "teardown.h"

namespace rpc_backends::ucx {

class Handshake {
 public:
  Handshake(const Services& services, Worker& worker, LinkTable& table, DeferredTasks& deferred, Teardown& teardown,
            Opening& opening, Sender& sender);

  // Call it when a peer has become known: its greeting may wait already.
  void on_learned(Link& link);
  // As in Strangers.
  bool finish_lookups() { return strangers_.finish_lookups(); }

 private:
  static ucs_status_t on_greeting(void* self, const void* header, size_t header_size, void* data, size_t size,
                                  const ucp_am_recv_param_t* param);
  void greeted(const Greeted& greeting);
  // Whether the greeting proves the identity that the peer must have.
  bool is_proved(Link& link, const Greeted& greeting);
  void admit(Link& link, const Greeted& greeted);
  // Does what a greeting asks for that is proved. Throws TransportError, and std::bad_alloc when only a part is done.
  void follow(Link& link, const wire::Greeting& greeting);
  // For a greeting with a new token: the peer has another link.
  void admit_new(Link& link, const wire::Greeting& greeting);
  // The peer has answered the greeting on this worker's link.
  void confirm(Link& link);
  void report_found(Link& link);

  const Services& services_;
  LinkTable& table_;
  DeferredTasks& deferred_;
  Teardown& teardown_;
  Opening& opening_;
  Sender& sender_;
  Strangers strangers_;
};

}  // namespace rpc_backends::ucx
