// Documents that hide sentences in irrelevant text and ask about them at their end. Each sentence
// has a line of its own:
//
//   The grass is green. … There and back again. …
//   The pass key is 48213. Remember it. 48213 is the pass key.
//   The grass is green. …
//   What is the pass key? The pass key is 48213
//
// This is the test of Mohtashami and Jaggi, "Landmark Attention" (arXiv 2305.16300), section 4.2,
// without its introduction, so that short contexts can be tested too. The other tasks are of the
// kinds of RULER (arXiv 2404.06654), section 3, in the same form: keys and values are retrieval,
// trace is multi-hop tracing, count is aggregation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/train/needle/filler.h"

namespace nsa::train {

enum class NeedleTask {
  // One pass key, as above.
  kKey,
  // Four sentences "The pass key of amber is 48213. Remember it.", each with another name and key.
  // The key of one name is asked for.
  kKeys,
  // Three sentences "One pass key of amber is 48213. Remember it." of one name. All keys are asked
  // for, in their order.
  kValues,
  // "VAR amber = 48213.", "VAR coral = VAR amber.", "VAR hazel = VAR coral.", and three such
  // sentences about other variables. The value of the last, hazel, is asked for.
  kTrace,
  // "The word is amber." 1 to 9 times. The number is asked for.
  kCount,
};

// key, keys, values, trace or count. InvalidArgument, about --task, for another name.
absl::StatusOr<NeedleTask> NeedleTaskNamed(std::string_view name);
const char* NameOf(NeedleTask task);

// The shortest document of a task.
size_t LeastBytes(NeedleTask task);

struct TaskDocument {
  std::string prompt;  // up to the question's "is" or "are"
  std::string answer;  // a space and a number; of kValues three with ", " between them
};

// A document of `bytes` bytes, at least LeastBytes(), prompt and answer together. `depth` says
// where in the filler the first sentence is that the answer needs: 0 at the beginning, 1 right
// before the question. Of kValues and kTrace, the needed sentences divide the filler behind it
// evenly: sentence i of 3 is at depth + (1 - depth) i / 3. Of kCount the others are anywhere behind
// the first. Keys of other names are anywhere, and so is the beginning of the other variables.
// `seed` chooses names, numbers, places and the place in the filler; keys and names of a document
// differ. What is left where no further word fits is filled with dots.
TaskDocument MakeTaskDocument(NeedleTask task, const Filler& filler, size_t bytes, double depth,
                              uint64_t seed);

}  // namespace nsa::train
