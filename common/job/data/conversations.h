// How the conversations of a job are written (data.loss_on: assistant).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/chat/chat_format.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

// The chat format of the tokenizer that a job names: that of the files beside it, or else ChatML,
// as for bytes. The errors of ReadChatFormat().
absl::StatusOr<ChatFormat> ChatFormatOf(const v1::DataSpec& data);

// What ends an answer of a model that learns answers, each the spelling of a token or a text.
// Nothing for other models, and where the format is not known.
std::vector<std::string> AnswerEnds(const v1::DataSpec& data);

// What identifies a format: its name, and a hash of everything that decides how a conversation is
// written in it, "chatml-0123456789abcdef".
std::string ChatFormatId(const ChatFormat& format);

// What fills the sequences of an epoch, in a sentence: "41 % of the positions are answers, …".
// Empty without `packing`.
std::string PackingText(const v1::CorpusSummary& corpus);

// Whether that is worth a look: conversations are cut or left out, or a quarter is padding.
bool PacksBadly(const v1::CorpusSummary& corpus);

}  // namespace nsa
