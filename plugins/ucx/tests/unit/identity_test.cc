#include "identity.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <new>

#include "authority.h"
#include "connection_proof.h"
#include "failing_new.h"
#include "rpc_backends_agents/transport.h"
#include "two_workers.h"

namespace rpc_backends::ucx {
namespace {

const Identity::Digest kUnknown{};

// Returns the reason against a proof; "" if there is none.
std::string reason(const Identity& reader, const std::string& proof, const std::string& statement, bool knows_us) {
  try {
    reader.check(proof, statement, knows_us);
    return "";
  } catch (const TransportError& error) {
    return error.what();
  }
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct IdentityTest : testing::Test {
  Authority authority;
  Identity identity1{authority.certify({"DNS:worker1"})}, identity2{authority.certify({"DNS:worker2"})};
};

TEST_F(IdentityTest, AProofNamesTheOwnerOfTheCertificate) {
  const auto first = identity2.check(identity1.prove("hello", kUnknown), "hello", false);
  EXPECT_EQ(first.subject.identity, "worker1");
  const auto second = identity1.check(identity2.prove("hello too", first.certificates), "hello too", false);
  EXPECT_EQ(second.subject.identity, "worker2");
}

TEST_F(IdentityTest, EveryChangedByteIsNoticed) {
  const std::string proof = identity1.prove("hello", kUnknown);
  for (size_t i = 0; i < proof.size(); ++i) {
    std::string changed = proof;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_NE(reason(identity2, changed, "hello", false), "") << "byte " << i;
  }
  for (const size_t size : {size_t{0}, size_t{1}, sizeof(Identity::Head), proof.size() - 1}) {
    EXPECT_NE(reason(identity2, proof.substr(0, size), "hello", false), "") << size << " bytes";
  }
  EXPECT_NE(reason(identity2, proof + "x", "hello", false), "");
}

TEST_F(IdentityTest, AProofOfAnotherStatementIsNoProof) {
  EXPECT_TRUE(contains(reason(identity2, identity1.prove("hello", kUnknown), "hello too", false),
                       "is not signed with the key"));
}

TEST_F(IdentityTest, TheOtherCertificateMustBeOneThatThisWorkerHasShown) {
  const auto of_identity1 = identity2.check(identity1.prove("a", kUnknown), "a", false).certificates;
  const auto of_identity2 = identity1.check(identity2.prove("a", kUnknown), "a", false).certificates;
  EXPECT_EQ(reason(identity2, identity1.prove("a", of_identity2), "a", true), "");
  EXPECT_TRUE(contains(reason(identity2, identity1.prove("a", of_identity1), "a", true), "for another certificate"));
  EXPECT_TRUE(contains(reason(identity2, identity1.prove("a", kUnknown), "a", true), "for another certificate"));
  identity2.renew(authority.certify({"DNS:worker2"}));
  EXPECT_EQ(reason(identity2, identity1.prove("a", of_identity2), "a", true),
            "");  // the other side has seen the former one
}

TEST_F(IdentityTest, ASignatureBelongsToItsCertificate) {
  const std::string first = identity1.prove("a", kUnknown),
                    second = Identity(authority.certify({"DNS:worker1"})).prove("a", kUnknown);
  Identity::Head head, second_head;
  std::memcpy(&head, first.data(), sizeof head);
  std::memcpy(&second_head, second.data(), sizeof second_head);
  Identity::Head mixed = second_head;
  mixed.signature = head.signature;
  const std::string swapped = std::string(reinterpret_cast<const char*>(&mixed), sizeof mixed) +
                              second.substr(sizeof second_head, second_head.certificates) +
                              first.substr(sizeof head + head.certificates);
  EXPECT_TRUE(contains(reason(identity2, swapped, "a", false), "is not signed with the key"));
}

TEST_F(IdentityTest, CertificatesThatExpiredOrAreOfOthersAreRefused) {
  const Identity expired(authority.certify({"DNS:worker1", -7200, -3600}));
  EXPECT_TRUE(contains(reason(identity2, expired.prove("a", kUnknown), "a", false), "certificate has expired"));
  const Identity foreign(Authority("another").certify({"DNS:worker1"}));
  EXPECT_TRUE(contains(reason(identity2, foreign.prove("a", kUnknown), "a", false), "is not accepted"));
  EXPECT_EQ(reason(identity2, "", "a", false), "it shows no certificate");
}

TEST_F(IdentityTest, RevokedCertificatesAreRefused) {
  const std::string proof = identity1.prove("a", kUnknown);
  identity2.revoke({"worker1"});
  EXPECT_TRUE(contains(reason(identity2, proof, "a", false), "is revoked"));
  identity2.revoke({"7"});  // their number
  EXPECT_TRUE(contains(reason(identity2, proof, "a", false), "is revoked"));
  identity2.revoke({});
  EXPECT_EQ(reason(identity2, proof, "a", false), "");
}

TEST_F(IdentityTest, ALongProofIsRefusedBeforeItIsRead) {
  Identity::Head head;
  head.certificates = Certificates::kLongest + 1;
  EXPECT_FALSE(Identity::size_of({reinterpret_cast<const char*>(&head), sizeof head}));
  head.certificates = Certificates::kLongest;
  head.signature = Identity::kLongestSignature + 1;
  EXPECT_FALSE(Identity::size_of({reinterpret_cast<const char*>(&head), sizeof head}));
}

TEST_F(IdentityTest, OnlyTheSameIdentityCanBeRenewed) {
  EXPECT_THROW(identity2.renew(authority.certify({"DNS:worker1"})), TransportError);
}

TEST(ConnectionKeyStatements, TheTwoSidesOfAConnectionStateDifferentThings) {
  const ConnectionKey key({1, 2, 3, 4}), other_key({1, 2, 3, 5});
  const auto proof = key.prove(5, 1, "");
  EXPECT_NE(key.connector_states(proof, ""), key.receiver_states(proof));  // no reflection
  EXPECT_NE(key.connector_states(proof, "a"), key.connector_states(proof, "b"));
  EXPECT_NE(key.receiver_states(proof), key.receiver_states(key.prove(5, 2, "")));
  EXPECT_NE(key.receiver_states(proof), other_key.receiver_states(proof));  // another group
}

// --- links -----------------------------------------------------------------------------------------

struct Member {
  Member(int id, const std::shared_ptr<Certificates>& certificates) : id(id) {
    Settings settings = some_settings();
    settings.certificates = certificates;
    settings.handshake_timeout = milliseconds(500);  // refused peers try again after it
    worker = std::make_unique<WorkerOf>(id, settings, CallbackThread::OnUnknownKey{}, [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex);
      log += line + "\n";
    });
  }

  // Learns a worker that has this identity.
  void learn(const WorkerOf& peer, const std::string& identity) {
    Credentials made = credentials(id, peer.id);
    made.identity = identity;
    made.our_statement = "from " + std::to_string(id) + " to " + std::to_string(peer.id);
    made.their_statement = "from " + std::to_string(peer.id) + " to " + std::to_string(id);
    worker->transport->learn_address(peer.id, peer.transport->address(), made);
  }

  std::string log_so_far() {
    const std::lock_guard<std::mutex> lock(mutex);
    return log;
  }

  const int id;
  std::mutex mutex;
  std::string log;
  std::unique_ptr<WorkerOf> worker;
};

class CertifiedLinks : public testing::Test {
 protected:
  static void SetUpTestSuite() { capture_log(false); }

  // Makes progress on both until `is_over`, or until something has been waited for too long.
  template <typename IsOver>
  void run(Member& member1, Member& member2, const IsOver& is_over) {
    for (const auto until = limit(); !is_over() && Clock::now() < until;) {
      for (Member* const member : {&member1, &member2}) {
        Event event;
        if (member->worker->receive(event)) {
          (event.kind == Kind::kMessage ? messages : losses)[member->id].push_back(std::string(event.reason));
        }
      }
    }
    EXPECT_TRUE(is_over()) << member1.log_so_far() << member2.log_so_far();
  }

  void exchange(Member& member1, Member& member2) {
    const size_t before = messages[member2.id].size() + messages[member1.id].size();
    member1.worker->transport->send(member2.id, parts_with({"hello"}), false);
    member2.worker->transport->send(member1.id, parts_with({"hello"}), false);
    run(member1, member2, [&] { return messages[member2.id].size() + messages[member1.id].size() == before + 2; });
  }

  Authority authority;
  std::map<int, std::vector<std::string>> messages, losses;
};

TEST_F(CertifiedLinks, WorkersWithTheirCertificatesExchangeMessages) {
  Member member1(1, authority.certify({"DNS:a"})), member2(2, authority.certify({"DNS:b"}));
  member1.learn(*member2.worker, "b");
  member2.learn(*member1.worker, "a");
  exchange(member1, member2);
  EXPECT_EQ(member1.log_so_far() + member2.log_so_far(), "");
}

TEST_F(CertifiedLinks, AnotherCertificateIsRefusedWithTheReasonOnOneSide) {
  Member member1(1, authority.certify({"DNS:a"})), member2(2, authority.certify({"DNS:intruder"}));
  member1.learn(*member2.worker, "b");
  member2.learn(*member1.worker, "a");
  member2.worker->transport->send(1, parts_with({"hello"}), false);
  run(member1, member2, [&] { return contains(member1.log_so_far(), "it has the certificate of intruder"); });
  EXPECT_TRUE(messages[1].empty());
  EXPECT_FALSE(contains(member2.log_so_far(), "intruder"));
  EXPECT_GE(member1.worker->count("refused"), 1U);
}

TEST_F(CertifiedLinks, AWorkerWithoutCertificatesIsRefused) {
  Member member1(1, authority.certify({"DNS:a"})), member2(2, nullptr);
  member1.learn(*member2.worker, "b");
  member2.learn(*member1.worker, "a");
  member2.worker->transport->send(1, parts_with({"hello"}), false);
  run(member1, member2, [&] { return contains(member1.log_so_far(), "it shows no certificate"); });
  EXPECT_TRUE(messages[1].empty());
}

TEST_F(CertifiedLinks, ARevokedPeerLosesItsOpenLink) {
  Member member1(1, authority.certify({"DNS:a"})), member2(2, authority.certify({"DNS:b"}));
  member1.learn(*member2.worker, "b");
  member2.learn(*member1.worker, "a");
  exchange(member1, member2);
  member1.worker->transport->revoke({"b"});
  run(member1, member2, [&] { return !losses[1].empty() && !losses[2].empty(); });
  EXPECT_EQ(losses[1].front(), "its certificate is revoked");
  EXPECT_EQ(losses[2].front(), "it has closed the connection");
  EXPECT_THROW(member1.worker->transport->send(2, parts_with({"hello"}), false), TransportError);
  run(member1, member2, [&] { return contains(member1.log_so_far(), "claims to be worker 2: the certificate of b"); });
  member1.worker->transport->revoke({});
  run(member1, member2,
      [&] { return member1.worker->count("peers_found") > 0 && member2.worker->count("peers_found") > 0; });
  exchange(member1, member2);
}

TEST_F(CertifiedLinks, ARevokedPeerIsLostAlthoughMemoryIsShort) {
  int number = 1;
  for (bool has_failed = true; has_failed && !HasFailure(); ++number) {
    Member member1(1, authority.certify({"DNS:a"})), member2(2, authority.certify({"DNS:b"}));
    member1.learn(*member2.worker, "b");
    member2.learn(*member1.worker, "a");
    exchange(member1, member2);
    losses.clear();
    const std::vector<std::string> revoked{"b"};
    fail_allocation(number);
    try {
      member1.worker->transport->revoke(revoked);
      has_failed = fail_allocation(0) == 0;
    } catch (const std::bad_alloc&) {
      member1.worker->transport->revoke(revoked);
    }
    run(member1, member2, [&] { return !losses[1].empty() && !losses[2].empty(); });
    EXPECT_THROW(member1.worker->transport->send(2, parts_with({"hello"}), false), TransportError) << number;
  }
  EXPECT_GT(number, 3);
}

TEST_F(CertifiedLinks, NewLinksShowANewCertificate) {
  Member member1(1, authority.certify({"DNS:a"})), member2(2, authority.certify({"DNS:b"}));
  member1.learn(*member2.worker, "b");
  member2.learn(*member1.worker, "a");
  member2.worker->transport->renew(authority.certify({"DNS:b", -3600, 3600, 77}));
  member1.worker->transport->revoke({"7"});  // the number of the former one
  exchange(member1, member2);
  EXPECT_THROW(member2.worker->transport->renew(authority.certify({"DNS:a"})), TransportError);
}

// Sends greetings as another process could, with all that it may have seen.
class RawGreeter {
 public:
  explicit RawGreeter(const WorkerOf& to)
      : context_(some_settings().config), worker_(std::make_unique<Worker>(context_)) {
    const std::string address = to.transport->address();
    ucp_ep_params_t param{};
    param.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    param.address = reinterpret_cast<const ucp_address_t*>(address.data());
    param.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    EXPECT_EQ(ucp_ep_create(worker_->get(), &param, &endpoint_), UCS_OK);
  }

  void send(const wire::Greeting& greeting, const std::string& proof) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | UCP_AM_SEND_FLAG_EAGER;
    kept_.push_back(std::make_unique<std::string>(proof));
    ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, static_cast<unsigned>(wire::Kind::kGreeting), &greeting,
                                               sizeof greeting, kept_.back()->data(), proof.size(), &param);
    if (UCS_PTR_IS_PTR(request)) {
      requests_.push_back(request);
    }
  }

  void progress() { ucp_worker_progress(worker_->get()); }

  ~RawGreeter() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t closing = ucp_ep_close_nbx(endpoint_, &param);
    for (int i = 0; i < 1000; ++i) {
      progress();
    }
    if (UCS_PTR_IS_PTR(closing)) {
      requests_.push_back(closing);
    }
    for (void* const request : requests_) {
      ucp_request_free(request);
    }
  }

 private:
  Context context_;
  std::unique_ptr<Worker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<std::unique_ptr<std::string>> kept_;
  std::vector<void*> requests_;
};

class RawGreetings : public CertifiedLinks {
 protected:
  RawGreetings() { member1.learn(*member2.worker, "b"); }

  wire::Greeting greeting(uint64_t number, uint64_t token) const {
    wire::Greeting made;
    made.from = 2;
    made.token = {token, token};
    made.proof = proof(2, 1);
    made.number = number;
    return made;
  }

  static std::string statement(const wire::Greeting& greeting, const std::string& words = "from 2 to 1") {
    return words + std::string(reinterpret_cast<const char*>(&greeting), sizeof greeting);
  }

  // Sends a greeting to worker 1 until its counter `name` has risen.
  void send(const wire::Greeting& head, const std::string& bytes, const std::string& name) {
    const uint64_t before = member1.worker->count(name);
    greeter.send(head, bytes);
    run(member1, member2, [&] {
      greeter.progress();
      return member1.worker->count(name) > before;
    });
  }

  Member member1{1, authority.certify({"DNS:a"})}, member2{2, authority.certify({"DNS:b"})};
  Identity identity{authority.certify({"DNS:b"})};
  RawGreeter greeter{*member1.worker};
};

TEST_F(RawGreetings, ASignedGreetingOpensALinkOnce) {
  const wire::Greeting first = greeting(5, 100), second = greeting(6, 200);
  const std::string of_first = identity.prove(statement(first), kUnknown);
  send(first, of_first, "connections");
  greeter.send(second, identity.prove(statement(second), kUnknown));
  send(first, of_first, "refused");  // repeated
  run(member1, member2, [&] { return contains(member1.log_so_far(), "its greeting was used before"); });
  send(greeting(4, 300), identity.prove(statement(greeting(4, 300)), kUnknown), "refused");
}

TEST_F(RawGreetings, AWorkerWithoutCertificatesTakesNoneOfOthers) {
  Member plain(3, nullptr);
  plain.learn(*member2.worker, "");
  RawGreeter to_plain(*plain.worker);
  wire::Greeting head = greeting(5, 100);
  head.proof = proof(2, 3);
  for (const std::string& bytes : {std::string("x"), std::string()}) {
    const std::string counter = bytes.empty() ? "connections" : "refused";
    to_plain.send(head, bytes);
    run(plain, member2, [&] {
      to_plain.progress();
      return plain.worker->count(counter) == 1;
    });
  }
}

TEST_F(RawGreetings, AGreetingWithAChangedByteIsRefused) {
  const wire::Greeting right = greeting(5, 100);
  const std::string signed_bytes = identity.prove(statement(right), kUnknown);
  for (size_t i = 0; i < sizeof right; ++i) {
    wire::Greeting changed = right;
    reinterpret_cast<char*>(&changed)[i] ^= 1;
    const bool is_known = std::equal(changed.proof.begin(), changed.proof.end(), right.proof.begin());
    if (changed.magic != right.magic || changed.from != right.from || is_known) {  // otherwise it is a stranger's
      send(changed, signed_bytes, "refused");
    }
  }
  EXPECT_EQ(member1.worker->count("connections"), 0U);
}

TEST_F(RawGreetings, GreetingsForOthersAreRefused) {
  const wire::Greeting head = greeting(5, 100);
  send(head, identity.prove(statement(head, "from 1 to 2"), kUnknown), "refused");  // reflected
  send(head, identity.prove(statement(head, "from 2 to 3"), kUnknown), "refused");
  send(head, "", "refused");
  send(head, std::string(Identity::kLongest + 1, 'x'), "refused");
  send(head, std::string(Identity::kLongest, '\xff'), "refused");
  EXPECT_EQ(member1.worker->count("connections"), 0U);
  send(head, identity.prove(statement(head), kUnknown), "connections");
}

TEST_F(RawGreetings, AtMostAThousandUnknownProofsWaitForALookup) {
  std::promise<void> may_end;
  WorkerOf asked(3, some_settings(), [&, over = may_end.get_future().share()](const std::string&, double) {
    over.wait();
    return std::nullopt;
  });
  RawGreeter to_asked(asked);
  constexpr size_t kMost = 1000;
  for (size_t i = 0; i < kMost + 5; ++i) {
    wire::Greeting head = greeting(1, 100);
    std::memcpy(head.proof.data(), &i, sizeof i);
    to_asked.send(head, "");
    Event event;
    EXPECT_FALSE(asked.receive(event, {}));
    to_asked.progress();
  }
  for (const auto until = limit(); asked.count("refused") < 5 && Clock::now() < until;) {
    Event event;
    EXPECT_FALSE(asked.receive(event));
    to_asked.progress();
  }
  EXPECT_EQ(asked.count("refused"), 5U);
  may_end.set_value();
}

TEST_F(RawGreetings, AFloodOfGreetingsLeavesRoomForMembers) {
  const wire::Greeting head = greeting(1, 100);
  std::string wrong = identity.prove(statement(head), kUnknown);
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  for (int i = 0; i < 300; ++i) {
    greeter.send(head, wrong);
    greeter.progress();
  }
  member2.learn(*member1.worker, "a");
  member2.worker->transport->send(1, parts_with({"hello"}), false);
  run(member1, member2, [&] {
    greeter.progress();
    return messages[1].size() == 1;
  });
}

}  // namespace
}  // namespace rpc_backends::ucx
