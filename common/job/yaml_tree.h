// YAML text into a plain tree with places. Strict where yaml-cpp is not: one document, no anchors,
// aliases or tags, at most 1 MiB, 32 levels and 100,000 values, clean UTF-8.
//
// The tree is built from parser events, so that an alias is refused before anything could expand
// it, and depth before anything could recurse.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/job/load.h"

namespace nsa {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;             // a scalar in quotes or in block style
  std::string scalar;              // kScalar
  std::vector<YamlNode> items;     // kSequence
  std::vector<YamlEntry> entries;  // kMap, as written; duplicates are kept
  SourcePlace place;
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

// One mistake of a file: `field: what; fix`.
struct LoadError {
  SourcePlace place;
  std::string field;  // field path, or "yaml" for the text as such
  std::string text;   // "what; fix"
};

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr size_t kMaxYamlDepth = 32;
inline constexpr size_t kMaxYamlValues = 100'000;

// Parses `text`. Mistakes are appended to `errors`; the tree is then incomplete. An empty document
// is a null node.
YamlNode ParseYaml(std::string_view text, std::vector<LoadError>* errors);

}  // namespace nsa
