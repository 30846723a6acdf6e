# Writes a C++ file with the files of the page, compressed. Run by CMake at build time:
#   cmake -DOUT=page_assets.cc "-DFILES=index.html;a.js;b.css" -P EmbedPage.cmake
#
# index.html names the other files in a folder whose name is a hash of them all, so browsers keep them and ask for nothing but index.html; and it lists
# all modules, so that a browser without them asks for them at once instead of import by import.

# Without name and time, so that the same files give the same bytes.
function(compressed file out_hex)
  execute_process(COMMAND gzip -9nc ${file} OUTPUT_FILE ${OUT}.gz COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${OUT}.gz hex HEX)
  file(REMOVE ${OUT}.gz)
  set(${out_hex} "${hex}" PARENT_SCOPE)
endfunction()

set(hashes "")
foreach(file ${FILES})
  file(SHA256 ${file} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 version "${hashes}")
string(SUBSTRING ${version} 0 16 version)

# index.html with the folder's name, and with the modules.
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  if(name STREQUAL "index.html")
    file(READ ${file} page)
    set(index_file ${file})
  endif()
endforeach()
set(preloads "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(REPLACE "=\"${name}\"" "=\"${version}/${name}\"" page "${page}")
  if(name MATCHES "\\.js$")
    file(STRINGS ${file} exports REGEX "^export ")
    if(exports)
      string(APPEND preloads "<link rel=\"modulepreload\" href=\"${version}/${name}\">\n")
    endif()
  endif()
endforeach()
string(REPLACE "<script type=\"module\"" "${preloads}<script type=\"module\"" page "${page}")
file(WRITE ${OUT}.html "${page}")

set(rows "")
set(arrays "")
set(index 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  get_filename_component(ending ${file} LAST_EXT)
  set(type_.html "text/html; charset=utf-8")
  set(type_.js "text/javascript; charset=utf-8")
  set(type_.css "text/css; charset=utf-8")
  set(type_.svg "image/svg+xml")
  if(file STREQUAL index_file)
    set(file ${OUT}.html)
  endif()
  compressed(${file} hex)
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 16 etag)
  string(REGEX REPLACE "(..)" "\\\\x\\1" bytes "${hex}")
  # A string literal has at most 64 KiB in the standard; compilers take more, but lines stay short.
  string(REGEX REPLACE "((\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f])(\\\\x[0-9a-f][0-9a-f]))" "\\1\"\n\"" bytes "${bytes}")
  string(APPEND arrays "constexpr char kFile${index}[] = \"${bytes}\";\n")
  string(APPEND rows "    {\"/${name}\", \"${type_${ending}}\", \"\\\"${etag}\\\"\", {kFile${index}, sizeof(kFile${index}) - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(REMOVE ${OUT}.html)
file(WRITE ${OUT} "#include \"server/web/assets.h\"

namespace nsa::server {
namespace {

constexpr std::string_view kFolder = \"/${version}\";

${arrays}
constexpr Asset kAssets[] = {
${rows}};

}  // namespace

std::optional<Asset> FindAsset(std::string_view path) {
  const bool lasting = path.starts_with(kFolder);
  if (lasting) path.remove_prefix(kFolder.size());
  else if (path == \"/\") path = \"/index.html\";
  for (Asset asset : kAssets) {
    if (asset.path != path) continue;
    asset.lasting = lasting;
    return asset;
  }
  return std::nullopt;
}

}  // namespace nsa::server
")
