// Stands in for libFuzzer where there is no clang: mutates the files of a folder, and passes them to the target.
// Usage: PROGRAM FOLDER INPUTS SEED, with ASAN_OPTIONS=abort_on_error=1. An input that fails is left in crash-alone.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

class Mutator {
 public:
  Mutator(std::vector<Bytes> seeds, uint64_t seed) : seeds_(std::move(seeds)), random_(seed) {}

  Bytes next() {
    Bytes bytes = any();
    for (uint64_t changes = 1 + below(4); changes > 0; --changes) {
      change(bytes);
    }
    return bytes;
  }

 private:
  uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  const Bytes& any() { return seeds_[below(seeds_.size())]; }

  void change(Bytes& bytes) {
    const size_t at = below(bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const size_t rest = bytes.size() - at;
    switch (below(6)) {
      case 0:
        if (rest > 0) {
          bytes[at] = static_cast<uint8_t>(random_());
        }
        return;
      case 1:
        if (rest > 0) {
          bytes[at] ^= static_cast<uint8_t>(1U << below(8));
        }
        return;
      case 2:
        bytes.erase(place, place + static_cast<std::ptrdiff_t>(std::min<size_t>(rest, 1 + below(8))));
        return;
      case 3:
        bytes.insert(place, static_cast<uint8_t>(random_()));
        return;
      case 4: {  // a part of another input, or of the same one
        const Bytes& source = any();
        const size_t start = below(source.size());
        const size_t size = std::min<size_t>(source.size() - start, 1 + below(60));
        const Bytes part(source.begin() + static_cast<std::ptrdiff_t>(start),
                         source.begin() + static_cast<std::ptrdiff_t>(start + size));
        bytes.insert(place, part.begin(), part.end());
        return;
      }
      default: {  // a part of another input in place of this one's
        const Bytes& source = any();
        const size_t size = std::min({rest, source.size() - std::min(at, source.size()), size_t{1} + below(60)});
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(std::min(at, source.size())), size, place);
      }
    }
  }

  const std::vector<Bytes> seeds_;
  std::mt19937_64 random_;
};

}  // namespace

// The input that the target has, for the handler of a failure.
const uint8_t* current = nullptr;
size_t current_size = 0;

void write_crash(int /*signal*/) {
  const int file = ::open("crash-alone", O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (::write(file, current, current_size) == static_cast<ssize_t>(current_size)) {
    constexpr char kText[] = "the input is in crash-alone\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kText, sizeof(kText) - 1);
  }
  std::_Exit(1);
}

int main(int count, char** arguments) {
  LLVMFuzzerInitialize(&count, &arguments);
  if (count != 4) {
    std::fprintf(stderr, "usage: %s FOLDER INPUTS SEED\n", arguments[0]);
    return 2;
  }
  std::vector<Bytes> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    LLVMFuzzerTestOneInput(seeds.back().data(), seeds.back().size());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "error: %s has no inputs\n", arguments[1]);
    return 2;
  }
  std::signal(SIGABRT, write_crash);
  const uint64_t inputs = std::strtoull(arguments[2], nullptr, 10);
  Mutator mutator(std::move(seeds), std::strtoull(arguments[3], nullptr, 10));
  for (uint64_t done = 1; done <= inputs; ++done) {
    const Bytes bytes = mutator.next();
    // A block of its own, so that the address sanitizer sees each read past its end.
    const auto copy = std::make_unique<uint8_t[]>(bytes.size());
    std::copy(bytes.begin(), bytes.end(), copy.get());
    current = copy.get();
    current_size = bytes.size();
    LLVMFuzzerTestOneInput(copy.get(), bytes.size());
    if (done % 1'000'000 == 0 || done == inputs) {
      std::printf("%llu inputs\n", static_cast<unsigned long long>(done));
      std::fflush(stdout);
    }
  }
  return 0;
}
