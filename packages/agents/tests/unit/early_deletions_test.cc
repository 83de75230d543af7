// Deletions of RRefs that arrive before torch knows the RRefs are done again later.
#include "rpc/early_deletions.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace rpc_backends {
namespace {

namespace rpc = torch::distributed::rpc;

// Counts the deletions that it gets.
class Counting final : public rpc::RequestCallback {
 public:
  mutable int deletions = 0;

 private:
  c10::intrusive_ptr<rpc::JitFuture> processMessage(rpc::Message& request,
                                                    std::vector<c10::Stream> /*streams*/) const override {
    deletions += request.type() == rpc::MessageType::RREF_USER_DELETE ? 1 : 0;
    return c10::make_intrusive<rpc::JitFuture>(at::AnyClassType::get());
  }
};

class EarlyDeletionsTest : public testing::Test {
 protected:
  void deletion_of(int64_t number) { deletions->note(rpc::ForkId(0, number)); }

  std::unique_ptr<EarlyDeletions::Creation> creation_of(int64_t number) {
    return std::make_unique<EarlyDeletions::Creation>(deletions, rpc::RRefId(0, number), rpc::ForkId(0, number));
  }

  std::shared_ptr<Counting> callback = std::make_shared<Counting>();
  std::shared_ptr<EarlyDeletions> deletions = std::make_shared<EarlyDeletions>(callback);
};

TEST_F(EarlyDeletionsTest, ADeletionDuringTheCreationIsDoneAgain) {
  auto creation = creation_of(1);
  deletion_of(1);
  EXPECT_EQ(callback->deletions, 0);
  creation.reset();
  EXPECT_EQ(callback->deletions, 1);
}

TEST_F(EarlyDeletionsTest, ADeletionThatOvertakesTheCreationIsDoneAgain) {
  deletion_of(1);
  deletion_of(2);
  auto creation = creation_of(1);
  EXPECT_EQ(callback->deletions, 0);
  creation.reset();
  EXPECT_EQ(callback->deletions, 1);
}

TEST_F(EarlyDeletionsTest, ACreationWithoutADeletionKeepsItsValue) {
  creation_of(1).reset();
  deletion_of(1);
  creation_of(2).reset();
  EXPECT_EQ(callback->deletions, 0);
}

TEST_F(EarlyDeletionsTest, ManyDeletionsDoNotAddUp) {
  for (int64_t number = 0; number < 100000; ++number) {
    deletion_of(number);
  }
  creation_of(0).reset();
  EXPECT_EQ(callback->deletions, 0);
  creation_of(99999).reset();
  EXPECT_EQ(callback->deletions, 1);
}

}  // namespace
}  // namespace rpc_backends
