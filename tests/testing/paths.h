// Paths of the source tree and of built programs. Only paths.cc is compiled with these paths, so
// that in another clone of the tree every test still comes from the compiler cache.
#pragma once

#include <string>

namespace nsa {

// The top of the source tree.
std::string SourceDir();

// The path of a built program, e.g. "nsa-agent".
std::string Program(const std::string& name);

// The path of a library or file that was built with the tests, e.g. "fake_nvml.so".
std::string TestFile(const std::string& name);

}  // namespace nsa
