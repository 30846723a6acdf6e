// Paths in commands that are printed for the user to type.
#pragma once

#include <string>

namespace nsa::client {

// A path as a word of a shell command: in quotes if it has a character that a shell may read.
std::string ShellWord(const std::string& path);

}  // namespace nsa::client
