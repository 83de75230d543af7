// The seeds of a fuzzer: with FUZZ_WRITE_SEEDS=FOLDER, the program writes them there and ends. Also what all fuzzers
// check with.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

// Each fuzzer defines this.
std::vector<std::string> seeds();

inline void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  if (const char* const folder = std::getenv("FUZZ_WRITE_SEEDS")) {
    std::filesystem::create_directories(folder);
    int number = 0;
    for (const std::string& seed : seeds()) {
      std::ofstream(folder + ("/seed" + std::to_string(number++)), std::ios::binary) << seed;
    }
    std::exit(0);
  }
  return 0;
}
