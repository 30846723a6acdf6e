#include "tests/testing/paths.h"

namespace nsa {

std::string SourceDir() { return NSA_SOURCE_DIR; }

std::string Program(const std::string& name) { return std::string(NSA_BIN_DIR "/") + name; }

std::string TestFile(const std::string& name) { return std::string(NSA_TESTS_DIR "/") + name; }

}  // namespace nsa
