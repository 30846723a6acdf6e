#include "worker/train/data/tokenize/pre_tokenizer_json.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/train/data/tokenize/split_pattern.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {
namespace {

using Json = nlohmann::json;

// A pattern that matches a text as it is.
std::string Quoted(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (absl::ascii_ispunct(static_cast<unsigned char>(c))) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

class PreTokenizerReader {
 public:
  explicit PreTokenizerReader(const std::filesystem::path& path) : path_(path) {}

  absl::StatusOr<std::vector<SplitStep>> Read(const Json& part) {
    if (PartOf(part, "type") != "Sequence") {
      NSA_RETURN_IF_ERROR(ReadLast(part, "pre_tokenizer"));
      return std::move(steps_);
    }
    const Json& parts = PartOf(part, "pretokenizers");
    if (!parts.is_array() || parts.empty() || parts.size() > kMostSplits) {
      return Unsupported(path_, "pre_tokenizer", part,
                         absl::StrCat("a Sequence of 1 to ", kMostSplits));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string place = absl::StrCat("pre_tokenizer.pretokenizers[", i, "]");
      NSA_RETURN_IF_ERROR(i + 1 < parts.size() ? ReadStep(parts[i], place)
                                               : ReadLast(parts[i], place));
    }
    return std::move(steps_);
  }

 private:
  absl::Status ReadLast(const Json& part, const std::string& place) {
    if (IsByteLevel(part, false)) return absl::OkStatus();
    if (IsByteLevel(part, true)) return Add(kGpt2Pattern, place);
    return Unsupported(path_, place, part,
                       "ByteLevel with add_prefix_space: false, alone or last of a Sequence");
  }

  absl::Status ReadStep(const Json& part, const std::string& place) {
    if (PartOf(part, "type") == "Split") return ReadSplit(part, place);
    const Json& individual = PartOf(part, "individual_digits");
    if (PartOf(part, "type") == "Digits" && individual.is_boolean()) {
      return Add(individual == true ? kDigitPattern : kNumberPattern, place);
    }
    return Unsupported(path_, place, part, "Split, Digits, or ByteLevel as the last one");
  }

  absl::Status ReadSplit(const Json& split, const std::string& place) {
    const Json& pattern = PartOf(split, "pattern");
    const Json& regex = PartOf(pattern, "Regex");
    const Json& literal = PartOf(pattern, "String");
    if (!regex.is_string() && !literal.is_string()) {
      return Unsupported(path_, absl::StrCat(place, ".pattern"), pattern, "a Regex or a String");
    }
    const auto text =
        regex.is_string() ? regex.get<std::string>() : Quoted(literal.get<std::string>());
    const Json& invert = PartOf(split, "invert");
    const bool isolated = PartOf(split, "behavior") == "Isolated" && IsOff(invert);
    // Removes what is not matched, which is nothing with a pattern that matches every text.
    const bool removed = PartOf(split, "behavior") == "Removed" && invert == true;
    if (isolated || (removed && MatchesEveryText(text))) return Add(text, place);
    return Unsupported(path_, place, split, "Split with behavior: Isolated and invert: false");
  }

  absl::Status Add(std::string_view pattern, const std::string& place) {
    absl::StatusOr<std::string> translated = Pcre2Pattern(pattern);
    if (!translated.ok()) {
      return Unsupported(path_, absl::StrCat(place, ".pattern"), std::string(pattern),
                         std::string(translated.status().message()));
    }
    steps_.push_back({.pattern = *std::move(translated), .ascii = AsciiSplitOf(pattern)});
    return absl::OkStatus();
  }

  const std::filesystem::path& path_;
  std::vector<SplitStep> steps_;
};

}  // namespace

bool IsByteLevel(const Json& part, bool own_pattern) {
  const Json& regex = PartOf(part, "use_regex");
  return PartOf(part, "type") == "ByteLevel" && PartOf(part, "add_prefix_space") == false &&
         (regex == own_pattern || (regex.is_null() && own_pattern));
}

absl::StatusOr<std::vector<SplitStep>> ReadPreTokenizer(const std::filesystem::path& path,
                                                        const Json& pre_tokenizer) {
  return PreTokenizerReader(path).Read(pre_tokenizer);
}

}  // namespace nsa::train
