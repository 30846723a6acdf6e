#include "worker/train/data/tokenize/first_tokens.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "common/base/characters/byte_characters.h"
#include "common/base/characters/utf8.h"
#include "worker/train/data/tokenize/text/spaces.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {
namespace {

constexpr int32_t kNoToken = -1;

int32_t IdOf(const BpeFiles& files, const std::string& token) {
  const auto found = files.ids.find(token);
  return found == files.ids.end() ? kNoToken : found->second;
}

absl::Status NoToken(unsigned char byte) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "byte %d, which no UTF-8 has, has no token; make the text UTF-8, or use a tokenizer with a "
      "token for each byte",
      byte));
}

// Byte-level BPE: each byte is a token, and the files write bytes as characters.
class ByteTokens final : public FirstTokens {
 public:
  explicit ByteTokens(const BpeFiles& files) {
    const std::array<std::string, 256> characters = BytesAsCharacters();
    byte_of_.fill(-1);
    for (int byte = 0; byte < 256; ++byte) {
      byte_of_[CodeAt(characters[byte], 0)] = static_cast<int16_t>(byte);
      ids_[byte] = IdOf(files, characters[byte]);
    }
  }

  absl::Status Append(std::string_view piece, std::vector<int32_t>* ids) const override {
    int32_t all = 0;
    for (const char c : piece) {
      ids->push_back(ids_[static_cast<unsigned char>(c)]);
      all |= ids->back();
    }
    if (all >= 0) return absl::OkStatus();
    return NoToken(
        static_cast<unsigned char>(*std::find_if(piece.begin(), piece.end(), [&](char c) {
          return ids_[static_cast<unsigned char>(c)] == kNoToken;
        })));
  }

  size_t WordEnd(std::string_view piece) const override { return piece.size(); }

  std::optional<std::string> PieceOf(const std::string& token) const override {
    std::string bytes;
    for (size_t at = 0; at < token.size(); at += (token[at] & 0x80) != 0 ? 2 : 1) {
      const int16_t byte = byte_of_[CodeAt(token, at)];
      if (byte < 0) return std::nullopt;
      bytes += static_cast<char>(byte);
    }
    return bytes;
  }

  std::string Decoded(const std::string& token, bool added) const override {
    return (added ? std::nullopt : PieceOf(token)).value_or(token);
  }

 private:
  // The character of one or two bytes of UTF-8 at `at`; 0 for a longer one.
  static size_t CodeAt(const std::string& text, size_t at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) return first;
    if ((first & 0xe0) != 0xc0 || at + 1 == text.size()) return 0;
    return (first & 0x1fu) << 6 | (static_cast<unsigned char>(text[at + 1]) & 0x3fu);
  }

  std::array<int16_t, 2048> byte_of_{};  // by the character that stands for it; −1: none does
  std::array<int32_t, 256> ids_{};
};

// Byte fallback: each character is a token, or else each of its bytes.
class CharacterTokens final : public FirstTokens {
 public:
  explicit CharacterTokens(const BpeFiles& files) : split_(files.split_before_marks) {
    for (int byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = IdOf(files, ByteToken(static_cast<unsigned char>(byte)));
    }
    for (const auto& [text, id] : files.ids) {
      if (const Utf8Character c = FirstUtf8(text); c.bytes > 0 && c.bytes == text.size()) {
        At(c.code).id = id;
      }
    }
    for (const auto& [left, right] : files.merges) {
      At(FirstUtf8(right).code).begins = true;
      Character& last = At(LastUtf8(left).code);
      last.ends = true;
      last.before_mark |= right.starts_with(kSpaceMark);
    }
  }

  absl::Status Append(std::string_view piece, std::vector<int32_t>* ids) const override {
    for (size_t at = 0; at < piece.size();) {
      size_t bytes = 0;
      const Character& character = CharacterAt(piece, at, &bytes);
      if (character.id != kNoToken) {
        ids->push_back(character.id);
        at += bytes;
        continue;
      }
      for (const size_t end = at + bytes; at < end; ++at) {
        const auto byte = static_cast<unsigned char>(piece[at]);
        if (byte_ids_[byte] == kNoToken) return NoToken(byte);
        ids->push_back(byte_ids_[byte]);
      }
    }
    return absl::OkStatus();
  }

  size_t WordEnd(std::string_view piece) const override {
    size_t bytes = 0;
    const Character* last = &CharacterAt(piece, 0, &bytes);
    for (size_t at = bytes; at < piece.size(); at += bytes) {
      const bool mark = piece.substr(at).starts_with(kSpaceMark);
      const Character& next = CharacterAt(piece, at, &bytes);
      const bool merges = last->ends && next.begins && (!mark || (last->before_mark && !split_));
      if (!merges) return at;
      last = &next;
    }
    return piece.size();
  }

  std::optional<std::string> PieceOf(const std::string& token) const override { return token; }

  std::string Decoded(const std::string& token, bool) const override {
    const std::optional<unsigned char> byte = ByteOfToken(token);
    return byte ? std::string(1, static_cast<char>(*byte)) : UnmarkSpaces(token);
  }

 private:
  struct Character {
    int32_t id = kNoToken;
    bool ends = false;         // the left part of some merge ends with it
    bool before_mark = false;  // of one whose right part begins with a mark
    bool begins = false;       // the right part of some merge begins with it
  };

  Character& At(char32_t code) {
    if (code >= characters_.size()) characters_.resize(code + 1);
    return characters_[code];
  }

  // The character at `at`, or a byte that is not UTF-8, and its size.
  const Character& CharacterAt(std::string_view text, size_t at, size_t* bytes) const {
    static constexpr Character kNone{};
    const Utf8Character c = FirstUtf8(text.substr(at));
    *bytes = std::max<size_t>(1, c.bytes);
    return c.bytes > 0 && c.code < characters_.size() ? characters_[c.code] : kNone;
  }

  const bool split_;                   // before every mark
  std::vector<Character> characters_;  // by code
  std::array<int32_t, 256> byte_ids_{};
};

}  // namespace

std::unique_ptr<const FirstTokens> FirstTokens::Of(const BpeFiles& files) {
  if (files.byte_fallback) return std::make_unique<CharacterTokens>(files);
  return std::make_unique<ByteTokens>(files);
}

}  // namespace nsa::train
