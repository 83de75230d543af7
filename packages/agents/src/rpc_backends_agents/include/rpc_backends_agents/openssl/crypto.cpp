#include "rpc_backends_agents/openssl/crypto.h"

#include <malloc.h>
#include <openssl/conf.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/provider.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "rpc_backends_agents/transport.h"

namespace rpc_backends {

namespace {

// OpenSSL is not cleaned up at exit: threads may still use it.
#ifdef OPENSSL_IS_OURS
// The system's configuration is for another OpenSSL than that in this package.
constexpr uint64_t kInit = OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG;

// OpenSSL 3 does not erase the secrets of a handshake when it frees it, so all that it frees is erased.
void erase(void* memory, const char* /*file*/, int /*line*/) {
  if (memory != nullptr) {
    OPENSSL_cleanse(memory, ::malloc_usable_size(memory));
    std::free(memory);
  }
}

void* resize(void* memory, size_t size, const char* file, int line) {
  if (memory == nullptr) {
    return std::malloc(size);
  }
  const size_t before = ::malloc_usable_size(memory);
  if (size <= before && size > 0) {
    return memory;
  }
  void* const other = size == 0 ? nullptr : std::malloc(size);
  if (other != nullptr) {
    std::memcpy(other, memory, before);
  }
  if (other != nullptr || size == 0) {
    erase(memory, file, line);
  }
  return other;
}
#else
constexpr uint64_t kInit = OPENSSL_INIT_NO_ATEXIT;
#endif

// Returns OpenSSL's reason for a failure: the first error is its cause.
std::string reason() {
  const char* data = nullptr;
  int flags = 0;
  const unsigned long error = ERR_peek_error_data(&data, &flags);
  const char* const known = error == 0 ? nullptr : ERR_reason_error_string(error);
  std::string text = known == nullptr ? "error " + std::to_string(error) : known;
  if (data != nullptr && (flags & ERR_TXT_STRING) != 0 && *data != '\0') {
    text += std::string(" (") + data + ")";
  }
  ERR_clear_error();
  return text;
}

std::string folder_of_modules() {
  const char* const variable = std::getenv("OPENSSL_MODULES");
  const char* const built_in = OPENSSL_info(OPENSSL_INFO_MODULES_DIR);
  return variable != nullptr ? variable : built_in != nullptr ? built_in : "an unknown folder";
}

// The provider serves one OpenSSL in a process, and that may be Python's. So this one gets a copy of the file.
class CopyOfModule {
 public:
  CopyOfModule() {
    const auto* const name = "rpc-fips-XXXXXX";
    std::error_code error;
    std::string folder = std::filesystem::temp_directory_path(error) / name;
    if (!error && ::mkdtemp(folder.data()) != nullptr) {
      folder_ = folder;
      std::filesystem::copy_file(folder_of_modules() + "/fips.so", folder_ + "/fips.so", error);
      is_made_ = !error;
    }
  }
  CopyOfModule(const CopyOfModule&) = delete;
  CopyOfModule& operator=(const CopyOfModule&) = delete;
  ~CopyOfModule() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  // Without a copy OpenSSL is to look itself, and say what it does not find.
  const char* folder() const { return is_made_ ? folder_.c_str() : nullptr; }

 private:
  std::string folder_;
  bool is_made_ = false;
};

// Makes the algorithms of the FIPS provider the only ones.
void use_fips(OSSL_LIB_CTX* library) {
  // It holds the checksum of the provider, without which most builds of it do not start.
  char* const path = CONF_get1_default_config_file();
  const std::string configuration = path == nullptr ? "" : path;
  OPENSSL_free(path);
  const CopyOfModule copy;
  OSSL_PROVIDER_set_default_search_path(library, copy.folder());
  OPENSSL_load_builtin_modules();
  OSSL_LIB_CTX_load_config(library, configuration.c_str());
  ERR_clear_error();
  if (OSSL_PROVIDER_load(library, "fips") == nullptr || OSSL_PROVIDER_load(library, "base") == nullptr ||
      EVP_set_default_properties(library, "fips=yes") != 1) {
    const std::string why = reason();
    throw TransportError(
        "fips is on, and OpenSSL " + std::string(OpenSSL_version(OPENSSL_VERSION_STRING)) +
        " of this package cannot start its FIPS provider from " + folder_of_modules() + " with the configuration " +
        configuration + ": " + why +
        ". Install a provider (Debian: openssl-provider-fips; Red Hat: openssl-fips-provider), run `openssl "
        "fipsinstall` if its documentation says so, and set OPENSSL_MODULES to the folder of fips.so and OPENSSL_CONF "
        "to the configuration. Or leave fips off");
  }
}

}  // namespace

void fail_in_openssl(const std::string& what) {
  throw TransportError("OpenSSL cannot " + what + ": " + reason());
}

const Crypto& Crypto::get(bool fips) {
#ifdef OPENSSL_IS_OURS
  static const int erases = CRYPTO_set_mem_functions(nullptr, &resize, &erase);
  (void)erases;
#endif
  OPENSSL_init_crypto(kInit, nullptr);
  // They live as long as the process: threads may use them while it exits.
  if (fips) {
    static const auto* const with_fips = new Crypto(true);
    return *with_fips;
  }
  static const auto* const without = new Crypto(false);
  return *without;
}

Crypto::Crypto(bool fips) : fips_(fips), library_(OSSL_LIB_CTX_new()) {
  if (library_ == nullptr) {
    fail_in_openssl("start");
  }
  if (fips) {
    use_fips(library());
  }
  aes_gcm_ = EVP_CIPHER_fetch(library(), "AES-128-GCM", nullptr);
  chacha20_ = fips ? nullptr : EVP_CIPHER_fetch(library(), "ChaCha20-Poly1305", nullptr);
  key_derivation_ = EVP_KDF_fetch(library(), "TLS13-KDF", nullptr);
  if (aes_gcm_ == nullptr || key_derivation_ == nullptr) {
    fail_in_openssl("find the algorithms of TLS 1.3");
  }
  ERR_clear_error();  // there may be no ChaCha20
}

}  // namespace rpc_backends
