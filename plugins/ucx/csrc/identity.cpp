#include "identity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends::ucx {

namespace {

Identity::Digest digest_of(std::string_view certificates) {
  Identity::Digest digest{};
  size_t size = digest.size();
  if (EVP_Q_digest(Crypto::get(false).library(), "SHA256", nullptr, certificates.data(), certificates.size(),
                   reinterpret_cast<unsigned char*>(digest.data()), &size) != 1) {
    fail_in_openssl("hash certificates");
  }
  return digest;
}

std::string signed_bytes(std::string_view statement, const Identity::Digest& other, std::string_view certificates) {
  std::string bytes = "rpc-backends ucx";
  const uint64_t size = statement.size();
  bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
  bytes.append(statement);
  bytes.append(other.data(), other.size());
  bytes.append(certificates);
  return bytes;
}

}  // namespace

Identity::Identity(std::shared_ptr<const Certificates> certificates)
    : certificates_(std::move(certificates)), ours_{digest_of(certificates_->chain())} {}

void Identity::renew(std::shared_ptr<const Certificates> certificates) {
  const Digest digest = digest_of(certificates->chain());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (certificates->subject().identity != certificates_->subject().identity) {
    throw TransportError("the new certificate is that of " + certificates->subject().identity +
                         ", and this worker is " + certificates_->subject().identity);
  }
  certificates_ = std::move(certificates);
  ours_.push_back(digest);
}

std::string Identity::prove(std::string_view statement, const Digest& other) const {
  std::shared_ptr<const Certificates> certificates;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    certificates = certificates_;
  }
  const std::string chain = certificates->chain();
  const std::string signature = certificates->sign(signed_bytes(statement, other, chain));
  Head head;
  head.certificates = static_cast<uint32_t>(chain.size());
  head.signature = static_cast<uint32_t>(signature.size());
  head.other = other;
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + chain + signature;
}

std::optional<size_t> Identity::size_of(std::string_view begin) {
  Head head;
  std::memcpy(&head, begin.data(), sizeof head);
  if (head.certificates > Certificates::kLongest || head.signature > kLongestSignature) {
    return std::nullopt;
  }
  return sizeof head + head.certificates + head.signature;
}

bool Identity::is_ours(const Digest& digest) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::find(ours_.begin(), ours_.end(), digest) != ours_.end();
}

Identity::Proved Identity::check(std::string_view proof, std::string_view statement, bool knows_us) const {
  if (proof.empty()) {
    throw TransportError("it shows no certificate");
  }
  if (proof.size() < sizeof(Head) || size_of(proof) != proof.size()) {
    throw TransportError("its certificates are invalid or too long");
  }
  Head head;
  std::memcpy(&head, proof.data(), sizeof head);
  if (head.other == Digest{} ? knows_us : !is_ours(head.other)) {
    throw TransportError("its proof is for another certificate than that of this worker");
  }
  const std::string_view chain = proof.substr(sizeof head, head.certificates);
  std::shared_ptr<const Certificates> certificates;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    certificates = certificates_;
  }
  Proved proved;
  proved.subject = certificates->check(chain, proof.substr(sizeof head + head.certificates),
                                       signed_bytes(statement, head.other, chain));
  proved.certificates = digest_of(chain);
  if (is_revoked(proved.subject)) {
    throw TransportError("the certificate of " + proved.subject.text() + " is revoked");
  }
  return proved;
}

}  // namespace rpc_backends::ucx
