// Where the tree and what was built from it are. Only paths.cc is compiled with these paths, so
// that another clone of the tree finds every test in the compiler cache.
#pragma once

#include <string>

namespace nsa {

// The top of the source tree.
std::string SourceDir();

// A program that was built, e.g. "nsa-agent": its path.
std::string Program(const std::string& name);

// A library or file that was built beside the tests, e.g. "fake_nvml.so": its path.
std::string TestFile(const std::string& name);

}  // namespace nsa
