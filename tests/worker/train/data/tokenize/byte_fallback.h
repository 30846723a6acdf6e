// A small tokenizer.json with byte_fallback, as the models of SentencePiece have one.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace nsa::train::byte_fallback {

using Merges = std::vector<std::pair<std::string, std::string>>;

inline const std::string kMark = "\u2581";
inline constexpr int32_t kBegin = 1;
inline constexpr int32_t kEnd = 2;
inline constexpr int32_t kFirstByte = 3;

// <unk>, <s> and </s>, the bytes, these characters, and the results of the merges.
inline nlohmann::json Tokenizer(const std::vector<std::string>& characters, const Merges& merges) {
  nlohmann::json vocab = {{"<unk>", 0}, {"<s>", kBegin}, {"</s>", kEnd}};
  for (int byte = 0; byte < 256; ++byte) {
    vocab[absl::StrFormat("<0x%02X>", byte)] = kFirstByte + byte;
  }
  for (const std::string& c : characters) vocab.emplace(c, vocab.size());
  nlohmann::json written = nlohmann::json::array();
  for (const auto& [left, right] : merges) {
    vocab.emplace(left + right, vocab.size());
    written.push_back(left + " " + right);
  }
  nlohmann::json added = nlohmann::json::array();
  for (const char* text : {"<unk>", "<s>", "</s>"}) {
    added.push_back({{"id", vocab[text]}, {"content", text}, {"special", true}});
  }
  const nlohmann::json decoders = {
      {{"type", "Replace"}, {"pattern", {{"String", kMark}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}},
      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  const nlohmann::json single = {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                 {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}};
  return {{"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", nullptr},
          {"post_processor", {{"type", "TemplateProcessing"}, {"single", single}}},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", written}}}};
}

// A normalizer that puts a space in front of a text and writes all as marks, as that of Llama 2.
inline nlohmann::json SpaceInFront() {
  const nlohmann::json normalizers = {
      {{"type", "Prepend"}, {"prepend", kMark}},
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMark}}};
  return {{"type", "Sequence"}, {"normalizers", normalizers}};
}

}  // namespace nsa::train::byte_fallback
