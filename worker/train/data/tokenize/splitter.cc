#define PCRE2_CODE_UNIT_WIDTH 8
#include "worker/train/data/tokenize/splitter.h"

#include <pcre2.h>

#include "absl/strings/str_format.h"

namespace nsa::train {
namespace {

constexpr uint32_t kMostHeap = 64 << 10;     // KiB for one search
constexpr uint32_t kMostSteps = 10'000'000;  // of one search

// What PCRE2 says about an error.
std::string TextOf(int error) {
  char text[256] = "";
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof(text));
  return text;
}

}  // namespace

void Splitter::FreeCode::operator()(pcre2_code* code) const { pcre2_code_free(code); }
void Splitter::FreeContext::operator()(pcre2_match_context* context) const {
  pcre2_match_context_free(context);
}
void Splitter::FreeMatch::operator()(pcre2_match_data* match) const {
  pcre2_match_data_free(match);
}

absl::StatusOr<Splitter> Splitter::Make(const std::string& pattern, AsciiSplit ascii) {
  Splitter splitter;
  splitter.ascii_ = ascii;
  if (pattern.empty()) return splitter;
  int error = 0;
  PCRE2_SIZE offset = 0;
  splitter.code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error,
                                     &offset, nullptr));
  if (splitter.code_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("is none: %s, at byte %d of '%s'", TextOf(error), offset, pattern));
  }
  pcre2_jit_compile(splitter.code_.get(), PCRE2_JIT_COMPLETE);
  splitter.limits_.reset(pcre2_match_context_create(nullptr));
  pcre2_set_heap_limit(splitter.limits_.get(), kMostHeap);
  pcre2_set_match_limit(splitter.limits_.get(), kMostSteps);
  if (splitter.Find("", 0, 0, splitter.NewMatch()) >= 0) {
    return absl::InvalidArgumentError("matches the empty text");
  }
  return splitter;
}

Splitter::Match Splitter::NewMatch() const {
  if (code_ == nullptr) return nullptr;
  return Match(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
}

int Splitter::Find(std::string_view text, size_t begin, uint32_t options,
                   const Match& match) const {
  return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), begin,
                     options, match.get(), limits_.get());
}

absl::Status Splitter::Search(std::string_view text, size_t begin, const Match& match,
                              Piece* piece) const {
  *piece = {text.size(), text.size()};
  if (code_ == nullptr) return absl::OkStatus();
  int found = Find(text, begin, 0, match);
  // Compiled code has 32 KiB of stack; the interpreter takes memory as it needs it, within a limit.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = Find(text, begin, PCRE2_NO_JIT, match);
  }
  if (found == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
  if (found < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the tokenizer's pattern fails from byte %d on: %s; use another tokenizer, "
                        "or divide the text",
                        begin, TextOf(found)));
  }
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
  *piece = {ends[0], ends[1]};
  if (piece->end > piece->begin) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the tokenizer's pattern matches nothing at byte %d; use another tokenizer", ends[0]));
}

}  // namespace nsa::train
