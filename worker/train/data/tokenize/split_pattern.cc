#include "worker/train/data/tokenize/split_pattern.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"

namespace nsa::train {
namespace {

// General categories of Unicode that every version divides alike, but for new characters.
constexpr std::string_view kCategories[] = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M", "Mn", "Mc", "Me", "N",  "Nd", "Nl", "No", "P", "Pc",
    "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S", "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};

// Two letters that are one character in another case: ß, ﬀ, ﬁ, ﬂ, ﬆ. Oniguruma takes the one for
// the other, PCRE2 does not.
constexpr std::string_view kLigatures[] = {"ss", "ff", "fi", "fl", "st"};

bool IsPunctuation(char c) { return absl::ascii_ispunct(static_cast<unsigned char>(c)); }

// Reads a pattern from the left and writes its translation.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  absl::StatusOr<std::string> Translate() {
    if (pattern_.empty() || pattern_.size() > kLongestPattern) {
      return absl::InvalidArgumentError(
          absl::StrFormat("has %d bytes (from 1 to %d)", pattern_.size(), kLongestPattern));
    }
    while (at_ < pattern_.size()) NSA_RETURN_IF_ERROR(Next());
    return std::move(translated_);
  }

 private:
  std::string_view rest() const { return pattern_.substr(at_); }

  void Take(size_t bytes) {
    translated_ += rest().substr(0, bytes);
    at_ += bytes;
  }

  absl::Status Refuse(size_t bytes, std::string_view why) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("has '%s' at byte %d (%s)", CleanLine(rest().substr(0, bytes)), at_, why));
  }

  absl::Status Next() {
    const char c = rest()[0];
    switch (c) {
      case '\\':
        return Escape();
      case '[':
        return Class();
      case '(':
        return Group();
      case ')':
        caseless_ = false;
        [[fallthrough]];
      case '|':
        Take(1);
        return absl::OkStatus();
      case '?':
      case '*':
      case '+':
        return Repeat();
      case '{':
        return Count();
      case '.':
      case '^':
      case '$':
      case ']':
      case '}':
        return Refuse(1, "means something else in another library, or needs \\ before it");
      default:
        return Character();
    }
  }

  absl::Status Character() {
    for (const std::string_view two : kLigatures) {
      if (caseless_ && rest().size() > 1 && absl::ascii_tolower(rest()[0]) == two[0] &&
          absl::ascii_tolower(rest()[1]) == two[1]) {
        return Refuse(2, "is one character in another case");
      }
    }
    if (caseless_ && (rest()[0] & 0x80) != 0) return Refuse(1, "only ASCII in any case");
    Take(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest().size() < 2) return Refuse(1, "nothing follows");
    const char c = rest()[1];
    if (c == 's' || c == 'S') {
      translated_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') return Category();
    if (std::string_view("rntdD").find(c) == std::string_view::npos && !IsPunctuation(c)) {
      return Refuse(2, "only \\r \\n \\t \\d \\D \\s \\S, \\p{…} and \\ before punctuation");
    }
    Take(2);
    return absl::OkStatus();
  }

  absl::Status Category() {
    const size_t end = std::min(rest().find('}'), rest().size() - 1);
    const std::string_view name = rest().substr(std::min<size_t>(3, end), end < 3 ? 0 : end - 3);
    const bool known =
        rest().substr(2, 1) == "{" &&
        std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
    if (!known) return Refuse(end + 1, "a general category such as L, Lu, M, N, P, S or Z");
    if (caseless_) return Refuse(end + 1, "not within (?i:…)");
    Take(end + 1);
    return absl::OkStatus();
  }

  // A class without classes in it.
  absl::Status Class() {
    Take(rest().substr(0, 2) == "[^" ? 2 : 1);
    if (rest().substr(0, 1) == "]") return Refuse(1, "an empty class, or a ] without \\");
    while (!rest().empty() && rest()[0] != ']') {
      const char c = rest()[0];
      if (c == '[' || rest().substr(0, 2) == "&&") {
        return Refuse(2, "a class within a class; \\[ is the bracket");
      }
      if (c != '\\') {
        NSA_RETURN_IF_ERROR(Character());
        continue;
      }
      const bool many =
          rest().size() > 1 && std::string_view("sSdDpP").find(rest()[1]) != std::string_view::npos;
      NSA_RETURN_IF_ERROR(Escape());
      if (many && rest().substr(0, 1) == "-" && rest().substr(1, 1) != "]") {
        return Refuse(1, "a range that begins with a class");
      }
    }
    if (rest().empty()) {
      return absl::InvalidArgumentError("has a class without its ] at the end");
    }
    Take(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (caseless_) return Refuse(1, "a group within (?i:…)");
    if (rest().substr(0, 2) == "(*") return Refuse(2, "a command of PCRE2");
    if (rest().substr(0, 2) != "(?") {
      Take(1);
      return absl::OkStatus();
    }
    for (const std::string_view begin : {"(?:", "(?=", "(?!", "(?i:"}) {
      if (!rest().starts_with(begin)) continue;
      caseless_ = begin == "(?i:";
      Take(begin.size());
      return absl::OkStatus();
    }
    return Refuse(4, "only (?:…), (?i:…), (?=…) and (?!…)");
  }

  absl::Status Repeat() {
    Take(1);
    if (rest().substr(0, 1) == "?" || rest().substr(0, 1) == "+") Take(1);
    return NoRepeat();
  }

  // {n}, {n,} or {n,m}. With + or ? behind it, it would be something else in Ruby.
  absl::Status Count() {
    const size_t end = std::min(rest().find('}'), rest().size() - 1);
    const std::string_view inside = rest().substr(1, end < 1 ? 0 : end - 1);
    const bool digits = inside.find_first_not_of("0123456789,") == std::string_view::npos;
    const bool one_comma = std::count(inside.begin(), inside.end(), ',') <= 1;
    if (inside.empty() || inside[0] == ',' || !digits || !one_comma || rest()[end] != '}') {
      return Refuse(end + 1, "a count such as {1,3}; \\{ is the bracket");
    }
    Take(end + 1);
    return NoRepeat();
  }

  absl::Status NoRepeat() const {
    const bool repeat =
        !rest().empty() && std::string_view("?*+{").find(rest()[0]) != std::string_view::npos;
    return repeat ? Refuse(1, "repeats what repeats already") : absl::OkStatus();
  }

  const std::string_view pattern_;
  size_t at_ = 0;
  bool caseless_ = false;  // within (?i:…), which has no other group in it
  std::string translated_;
};

}  // namespace

absl::StatusOr<std::string> Pcre2Pattern(std::string_view pattern) {
  return Translator(pattern).Translate();
}

}  // namespace nsa::train
