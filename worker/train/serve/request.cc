#include "worker/train/serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clean_text.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/train/serve/limits.h"

namespace nsa::train::serve {
namespace {

using RequestJson = nlohmann::json;

constexpr size_t kShownValueBytes = 60;
constexpr size_t kModelBytes = 256;

absl::Status Refuse(std::string_view what) {
  return absl::InvalidArgumentError(absl::string_view(what.data(), what.size()));
}

// A value as a message shows it.
std::string Shown(const RequestJson& value) {
  if (value.is_array()) return absl::StrCat("a list of ", value.size());
  if (value.is_object()) return "an object";
  if (value.is_string() && value.get_ref<const std::string&>().size() > kShownValueBytes) {
    return absl::StrCat("a string of ", value.get_ref<const std::string&>().size(), " bytes");
  }
  return value.dump(-1, ' ', false, RequestJson::error_handler_t::replace);
}

absl::Status Wrong(const std::string& name, const RequestJson& value, std::string_view wanted,
                   std::string_view advice) {
  return Refuse(absl::StrCat(name, ": ", Shown(value), " (",
                             absl::string_view(wanted.data(), wanted.size()), "); ",
                             absl::string_view(advice.data(), advice.size())));
}

// Refuses text that would take much more memory as JSON than as bytes, before it is read: counts
// brackets and commas outside strings.
absl::Status CheckShape(std::string_view body) {
  int level = 0;
  int64_t values = 1;
  bool inside = false;  // a string
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (inside) {
      if (c == '\\') ++i;
      if (c == '"') inside = false;
      continue;
    }
    if (c == '"') inside = true;
    if (c == '[' || c == '{') ++level;
    if (c == ']' || c == '}') --level;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (level > kJsonLevels) {
      return Refuse(
          absl::StrFormat("body: more than %d levels of nesting (at most %d); a prompt is a "
                          "string, or a list of strings or of lists of tokens",
                          kJsonLevels, kJsonLevels));
    }
  }
  if (values <= kJsonValues) return absl::OkStatus();
  return Refuse(absl::StrFormat("body: about %d values (at most %d); send fewer prompts at a time",
                                values, kJsonValues));
}

// The value as a whole number, if it is one. Some languages write 4 as 4.0.
std::optional<int64_t> Whole(const RequestJson& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!(number >= -0x1p63 && number < 0x1p63) || std::trunc(number) != number) return {};
    return static_cast<int64_t>(number);
  }
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

absl::Status ReadInteger(const std::string& name, const RequestJson& value, int64_t least,
                         int64_t most, int64_t* to) {
  const std::optional<int64_t> whole = Whole(value);
  if (whole.has_value() && *whole >= least && *whole <= most) {
    *to = *whole;
    return absl::OkStatus();
  }
  return Wrong(name, value, absl::StrFormat("must be a whole number from %d to %d", least, most),
               "change it or leave it out");
}

absl::Status ReadBool(const std::string& name, const RequestJson& value, bool* to) {
  if (!value.is_boolean())
    return Wrong(name, value, "must be true or false", "leave it out for false");
  *to = value.get<bool>();
  return absl::OkStatus();
}

absl::Status ReadNumber(const std::string& name, const RequestJson& value, double* to) {
  if (!value.is_number())
    return Wrong(name, value, "must be a number", "change it or leave it out");
  *to = value.get<double>();
  return absl::OkStatus();
}

// Parameters of OpenAI's API, vLLM, SGLang and llama.cpp that are not supported, with the values
// besides null that ask for nothing. Clients send them as their defaults. The separator is never
// generated, so nothing depends on the options about it.
constexpr char kNeutral[] = R"({
  "add_special_tokens": [true], "allowed_token_ids": [], "bad_words": [[]],
  "add_generation_prompt": [true], "audio": [], "best_of": [1], "cache_prompt": [false, true],
  "cache_salt": [], "chat_template": [], "chat_template_kwargs": [{}],
  "continue_final_message": [false], "custom_params": [],
  "detokenize": [true], "do_sample": [true], "documents": [],
  "dry_allowed_length": [2], "dry_base": [1.75], "dry_multiplier": [0],
  "dry_penalty_last_n": [-1, 0], "dynatemp_exponent": [1], "dynatemp_range": [0], "ebnf": [],
  "early_stopping": [false], "echo": [false], "frequency_penalty": [0],
  "function_call": ["none"], "functions": [[]], "grammar": [""], "guided_choice": [],
  "guided_decoding_backend": [], "guided_grammar": [], "guided_json": [], "guided_regex": [],
  "guided_whitespace_pattern": [], "ignore_eos": [false, true],
  "include_stop_str_in_output": [false], "json_schema": [], "kv_transfer_params": [],
  "length_penalty": [1], "logit_bias": [{}], "logits_processors": [[]], "lora_path": [],
  "max_completion_tokens": [], "metadata": [{}], "min_keep": [0], "min_p": [0],
  "min_tokens": [0], "mirostat": [0], "mirostat_eta": [0.1], "mirostat_tau": [5],
  "modalities": [["text"]], "n_probs": [0], "no_repeat_ngram_size": [0],
  "no_stop_trim": [false], "parallel_tool_calls": [false, true], "prediction": [],
  "presence_penalty": [0], "priority": [0], "prompt_embeds": [], "prompt_logprobs": [],
  "reasoning_effort": [], "regex": [], "repeat_last_n": [-1, 0, 64], "repeat_penalty": [1],
  "repetition_penalty": [1], "request_id": [], "response_format": [{"type": "text"}],
  "return_hidden_states": [false], "return_token_ids": [false],
  "return_tokens_as_token_ids": [false], "rid": [], "samplers": [],
  "service_tier": ["auto", "default"], "session_params": [],
  "skip_special_tokens": [false, true], "spaces_between_special_tokens": [false, true],
  "stop_regex": [], "stop_token_ids": [[]], "store": [false],
  "stream_options": {"continuous_usage_stats": [false], "include_obfuscation": [false, true]},
  "structured_outputs": [], "suffix": [""], "tfs_z": [1], "tool_choice": ["auto", "none"],
  "tools": [[]], "top_a": [0], "top_logprobs": [0], "top_n_sigma": [-1, 0],
  "truncate_prompt_tokens": [], "typical_p": [1], "use_beam_search": [false],
  "vllm_xargs": [{}], "xtc_probability": [0], "xtc_threshold": [0.1]
})";

const RequestJson& Neutral() {
  static const auto* const kParsed = new RequestJson(RequestJson::parse(kNeutral));
  return *kParsed;
}

// Refuses what asks for something. `values` are those that do not.
absl::Status CheckNeutral(const std::string& name, const RequestJson& value,
                          const RequestJson& values) {
  if (value.is_null() || std::find(values.begin(), values.end(), value) != values.end()) {
    return absl::OkStatus();
  }
  return Wrong(name, value, "not supported", "leave it out");
}

bool AreTokens(const RequestJson& list) {
  return std::all_of(list.begin(), list.end(), [](const RequestJson& token) {
    const std::optional<int64_t> whole = Whole(token);
    return whole.has_value() && *whole >= 0 && *whole <= std::numeric_limits<int32_t>::max();
  });
}

absl::Status WrongPrompt(const RequestJson& value) {
  return Wrong(
      "prompt", value,
      "must be a string, a list of strings, a list of tokens, or a list of lists of tokens",
      "a token is a whole number from 0");
}

// One element of a list of prompts.
absl::Status AddPrompt(const RequestJson& value, CompletionRequest* to) {
  if (value.is_string()) {
    to->prompts.emplace_back(value.get<std::string>());
  } else if (value.is_array() && AreTokens(value)) {
    to->prompts.emplace_back(value.get<std::vector<int32_t>>());
  } else {
    return WrongPrompt(value);
  }
  return absl::OkStatus();
}

absl::Status ReadPrompt(const RequestJson& value, CompletionRequest* to) {
  const bool list =
      value.is_array() && !value.empty() && (value.front().is_string() || value.front().is_array());
  if (!list) {
    if (value.is_array() && value.empty()) {
      return Refuse("prompt: an empty list (at least 1 prompt); send \"\" to begin a text");
    }
    return AddPrompt(value, to);
  }
  if (static_cast<int64_t>(value.size()) > kChoices) {
    return Refuse(absl::StrFormat("prompt: %d prompts (at most %d); send fewer at a time",
                                  value.size(), kChoices));
  }
  for (const RequestJson& one : value) NSA_RETURN_IF_ERROR(AddPrompt(one, to));
  return absl::OkStatus();
}

absl::Status AddStop(const RequestJson& value, CompletionRequest* to) {
  const bool good = value.is_string() && !value.get_ref<const std::string&>().empty() &&
                    value.get_ref<const std::string&>().size() <= kStopBytes;
  if (!good) {
    return Wrong("stop", value, absl::StrFormat("must be a string of 1 to %d bytes", kStopBytes),
                 "change it or leave it out");
  }
  to->stops.push_back(value.get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadStop(const RequestJson& value, CompletionRequest* to) {
  if (!value.is_array()) return AddStop(value, to);
  if (value.size() > kStops) {
    return Wrong("stop", value, absl::StrFormat("at most %d strings", kStops), "send fewer");
  }
  for (const RequestJson& one : value) NSA_RETURN_IF_ERROR(AddStop(one, to));
  return absl::OkStatus();
}

// A content that is a list of parts, which must be texts.
absl::Status AddPart(const std::string& place, const RequestJson& value, std::string* to) {
  const bool text = value.is_object() && value.value("type", RequestJson()) == "text" &&
                    value.value("text", RequestJson()).is_string();
  if (!text) {
    return Wrong(place, value, "must be {\"type\": \"text\", \"text\": \"…\"}",
                 "the model reads nothing but text");
  }
  *to += value["text"].get_ref<const std::string&>();
  return absl::OkStatus();
}

absl::Status ReadContent(const std::string& place, const RequestJson& value, std::string* to) {
  if (value.is_string()) {
    *to = value.get<std::string>();
    return absl::OkStatus();
  }
  if (!value.is_array())
    return Wrong(place, value, "must be a string or a list of texts", "send one");
  for (size_t i = 0; i < value.size(); ++i) {
    NSA_RETURN_IF_ERROR(AddPart(absl::StrCat(place, "[", i, "]"), value[i], to));
  }
  return absl::OkStatus();
}

absl::Status ReadRole(const std::string& place, const RequestJson& value, std::string* to) {
  for (const char* role : {"system", "user", "assistant"}) {
    if (value == role) *to = role;
  }
  if (value == "developer") *to = "system";  // as the API calls it now
  if (!to->empty()) return absl::OkStatus();
  return Wrong(place, value, "must be system, user or assistant", "leave other messages out");
}

// A message. Clients send back the members of an answer that say nothing, such as refusal: null.
absl::Status ReadMessage(const std::string& place, const RequestJson& value, ChatMessage* to) {
  if (!value.is_object()) {
    return Wrong(place, value, "must be an object with role and content", "send one");
  }
  for (const auto& [name, part] : value.items()) {
    const std::string full = absl::StrCat(place, ".", name);
    const bool nothing = part.is_null() || (part.is_array() && part.empty());
    if (name == "role") {
      NSA_RETURN_IF_ERROR(ReadRole(full, part, &to->role));
    } else if (name == "content" && !part.is_null()) {
      NSA_RETURN_IF_ERROR(ReadContent(full, part, &to->content));
    } else if (name != "name" && !nothing) {
      return Wrong(absl::StrCat(place, ".", CutText(name, kShownValueBytes)), part, "not supported",
                   "leave it out");
    }
  }
  if (!to->role.empty()) return absl::OkStatus();
  return Refuse(absl::StrCat(place, ".role: missing (system, user or assistant); name it"));
}

absl::Status ReadMessages(const RequestJson& value, CompletionRequest* to) {
  if (!value.is_array() || value.empty()) {
    return Wrong("messages", value, "must be a list of at least one message",
                 "send [{\"role\": \"user\", \"content\": \"…\"}]");
  }
  for (size_t i = 0; i < value.size(); ++i) {
    NSA_RETURN_IF_ERROR(
        ReadMessage(absl::StrCat("messages[", i, "]"), value[i], &to->messages.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status ReadText(const std::string& name, const RequestJson& value, std::string* to) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() > kModelBytes) {
    return Wrong(name, value, absl::StrFormat("must be a string of at most %d bytes", kModelBytes),
                 "leave it out");
  }
  *to = value.get<std::string>();
  return absl::OkStatus();
}

// What is read before it can be checked against the rest.
struct Draft {
  CompletionRequest request;
  int64_t n = 1, logprobs = 0, seed = 0;
  bool wants_logprobs = false;  // of a chat
  std::optional<int64_t> best_of, max_completion_tokens;
  std::string user;  // has no effect, as safety_identifier and prompt_cache_key
  bool has_stream_options = false;
};

absl::Status ReadBestOf(const RequestJson& value, Draft* draft) {
  return ReadInteger("best_of", value, 1, kChoices, &draft->best_of.emplace());
}

absl::Status ReadMaxTokens(const RequestJson& value, Draft* draft) {
  int64_t most = -1;
  if (!value.is_null()) NSA_RETURN_IF_ERROR(ReadInteger("max_tokens", value, -1, kTokens, &most));
  draft->request.max_tokens = most < 0 ? std::nullopt : std::optional(most);
  return absl::OkStatus();
}

absl::Status ReadLogprobs(const RequestJson& value, Draft* draft) {
  if (value == false) return absl::OkStatus();  // as the chat API writes that none are wanted
  NSA_RETURN_IF_ERROR(ReadInteger("logprobs", value, 0, kMostLogprobs, &draft->logprobs));
  draft->request.logprobs = static_cast<int32_t>(draft->logprobs);
  return absl::OkStatus();
}

absl::Status ReadTopLogprobs(const RequestJson& value, Draft* draft) {
  return ReadInteger("top_logprobs", value, 0, kMostLogprobs, &draft->logprobs);
}

absl::Status ReadMaxCompletionTokens(const RequestJson& value, Draft* draft) {
  return ReadInteger("max_completion_tokens", value, 1, kTokens,
                     &draft->max_completion_tokens.emplace());
}

absl::Status ReadSeed(const RequestJson& value, Draft* draft) {
  NSA_RETURN_IF_ERROR(ReadInteger("seed", value, std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max(), &draft->seed));
  draft->request.seed = draft->seed;
  return absl::OkStatus();
}

absl::Status ReadTemperature(const RequestJson& value, Draft* draft) {
  return ReadNumber("temperature", value, &draft->request.draw.temperature);
}

// −1 is how vLLM writes 0.
absl::Status ReadTopK(const RequestJson& value, Draft* draft) {
  int64_t* const top_k = &draft->request.draw.top_k;
  NSA_RETURN_IF_ERROR(ReadInteger("top_k", value, -1, std::numeric_limits<int32_t>::max(), top_k));
  *top_k = std::max<int64_t>(*top_k, 0);
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(const RequestJson& value, Draft* draft) {
  draft->has_stream_options = true;
  if (!value.is_object()) {
    return Wrong("stream_options", value, "must be an object with include_usage", "leave it out");
  }
  for (const auto& [name, option] : value.items()) {
    const std::string full = absl::StrCat("stream_options.", name);
    const RequestJson& others = Neutral().at("stream_options");
    if (const auto values = others.find(name); values != others.end()) {
      NSA_RETURN_IF_ERROR(CheckNeutral(full, option, *values));
    } else if (name != "include_usage") {
      return Wrong("stream_options", name, "must be include_usage", "leave it out");
    } else if (!option.is_null()) {
      NSA_RETURN_IF_ERROR(ReadBool(full, option, &draft->request.include_usage));
    }
  }
  return absl::OkStatus();
}

using Reader = absl::Status (*)(const RequestJson& value, Draft* draft);
using ReaderMap = std::map<std::string, Reader>;

// Every parameter of completions that is supported.
const ReaderMap& CompletionReaders() {
  static const auto* const kReaders = new ReaderMap{
      {"best_of", [](const RequestJson& v, Draft* d) { return ReadBestOf(v, d); }},
      {"echo",
       [](const RequestJson& v, Draft* d) { return ReadBool("echo", v, &d->request.echo); }},
      {"logprobs", [](const RequestJson& v, Draft* d) { return ReadLogprobs(v, d); }},
      {"max_tokens", [](const RequestJson& v, Draft* d) { return ReadMaxTokens(v, d); }},
      {"model",
       [](const RequestJson& v, Draft* d) { return ReadText("model", v, &d->request.model); }},
      {"n", [](const RequestJson& v, Draft* d) { return ReadInteger("n", v, 1, kChoices, &d->n); }},
      {"prompt_cache_key",
       [](const RequestJson& v, Draft* d) { return ReadText("prompt_cache_key", v, &d->user); }},
      {"prompt", [](const RequestJson& v, Draft* d) { return ReadPrompt(v, &d->request); }},
      {"safety_identifier",
       [](const RequestJson& v, Draft* d) { return ReadText("safety_identifier", v, &d->user); }},
      {"seed", [](const RequestJson& v, Draft* d) { return ReadSeed(v, d); }},
      {"stop", [](const RequestJson& v, Draft* d) { return ReadStop(v, &d->request); }},
      {"stream",
       [](const RequestJson& v, Draft* d) { return ReadBool("stream", v, &d->request.stream); }},
      {"stream_options", [](const RequestJson& v, Draft* d) { return ReadStreamOptions(v, d); }},
      {"temperature", [](const RequestJson& v, Draft* d) { return ReadTemperature(v, d); }},
      {"top_k", [](const RequestJson& v, Draft* d) { return ReadTopK(v, d); }},
      {"top_p", [](const RequestJson& v,
                   Draft* d) { return ReadNumber("top_p", v, &d->request.draw.top_p); }},
      {"user", [](const RequestJson& v, Draft* d) { return ReadText("user", v, &d->user); }}};
  return *kReaders;
}

// Every parameter of a chat that is supported.
const ReaderMap& ChatReaders() {
  static const auto* const kReaders = [] {
    auto* const readers = new ReaderMap(CompletionReaders());
    for (const char* name : {"best_of", "echo", "prompt"}) readers->erase(name);
    readers->insert_or_assign("logprobs", [](const RequestJson& v, Draft* d) {
      return ReadBool("logprobs", v, &d->wants_logprobs);
    });
    readers->insert(
        {{"max_completion_tokens", ReadMaxCompletionTokens},
         {"messages", [](const RequestJson& v, Draft* d) { return ReadMessages(v, &d->request); }},
         {"top_logprobs", ReadTopLogprobs}});
    return readers;
  }();
  return *kReaders;
}

absl::Status UnknownParameter(const std::string& name, const ReaderMap& readers) {
  const std::string shown = CutText(name, kShownValueBytes);
  std::string known;
  for (const auto& [one, reader] : readers) absl::StrAppend(&known, known.empty() ? "" : ", ", one);
  return Refuse(absl::StrCat(shown, ": unknown parameter (", known, "); leave it out"));
}

absl::Status CheckDrawing(const DrawOptions& draw) {
  if (!(draw.temperature >= 0 && draw.temperature <= 100)) {
    return Refuse(
        absl::StrFormat("temperature: %g (from 0 to 100); leave it out for 1", draw.temperature));
  }
  if (!(draw.top_p > 0 && draw.top_p <= 1)) {
    return Refuse(
        absl::StrFormat("top_p: %g (more than 0, at most 1); leave it out for 1", draw.top_p));
  }
  return absl::OkStatus();
}

// What a chat has in other parameters than completions.
absl::Status FinishChat(Draft* draft) {
  CompletionRequest& request = draft->request;
  if (!request.chat()) {
    return Refuse("messages: missing (must be a list); send [{\"role\": \"user\", …}]");
  }
  if (draft->max_completion_tokens) request.max_tokens = draft->max_completion_tokens;
  if (request.max_tokens == 0) {
    return Refuse("max_tokens: 0 (at least 1); leave it out for as many as there is room for");
  }
  if (draft->wants_logprobs) request.logprobs = static_cast<int32_t>(draft->logprobs);
  if (draft->logprobs == 0 || draft->wants_logprobs) return absl::OkStatus();
  return Refuse(absl::StrFormat(
      "top_logprobs: %d (only with logprobs: true); set it or leave this out", draft->logprobs));
}

absl::Status FinishCompletion(Draft* draft) {
  const CompletionRequest& request = draft->request;
  if (request.prompts.empty()) {
    return Refuse("prompt: missing (must be a string or a list); send \"\" to begin a text");
  }
  if (request.max_tokens == 0 && !request.echo) {
    return Refuse("max_tokens: 0 (at least 1, without echo); set echo to score a prompt");
  }
  return absl::OkStatus();
}

// What several parameters must keep together.
absl::Status CheckTogether(const Draft& draft) {
  const CompletionRequest& request = draft.request;
  if (draft.has_stream_options && !request.stream) {
    return Refuse("stream_options: set (only with stream); leave it out");
  }
  if (draft.best_of.value_or(draft.n) != draft.n) {
    return Refuse(
        absl::StrFormat("best_of: %d (must be n = %d); leave it out", *draft.best_of, draft.n));
  }
  const auto prompts = std::max<int64_t>(std::ssize(request.prompts), 1);
  if (prompts * draft.n > kChoices) {
    return Refuse(absl::StrFormat("n: %d for each of %d prompts (%d choices in all); send fewer",
                                  draft.n, prompts, kChoices));
  }
  return CheckDrawing(request.draw);
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadRequest(std::string_view body, Api api) {
  const bool chat = api == Api::kChat;
  const ReaderMap& readers = chat ? ChatReaders() : CompletionReaders();
  NSA_RETURN_IF_ERROR(CheckShape(body));
  const RequestJson document = RequestJson::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) {
    return Refuse(absl::StrCat("body: not a JSON object in UTF-8; send ",
                               chat ? "{\"messages\": […]}" : "{\"prompt\": \"…\"}"));
  }
  Draft draft;
  if (chat) draft.request.max_tokens = std::nullopt;
  for (const auto& [name, value] : document.items()) {
    const auto reader = readers.find(name);
    if (reader == readers.end()) {
      const auto values = Neutral().find(name);
      if (values == Neutral().end()) return UnknownParameter(name, readers);
      NSA_RETURN_IF_ERROR(CheckNeutral(name, value, *values));
      continue;
    }
    if (value.is_null() && name != "max_tokens") continue;
    NSA_RETURN_IF_ERROR(reader->second(value, &draft));
  }
  NSA_RETURN_IF_ERROR(chat ? FinishChat(&draft) : FinishCompletion(&draft));
  NSA_RETURN_IF_ERROR(CheckTogether(draft));
  draft.request.n = static_cast<int32_t>(draft.n);
  return std::move(draft.request);
}

}  // namespace nsa::train::serve
