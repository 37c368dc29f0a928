# `cmake --install build/release --prefix DIR`: the program, the name `vllm` for it, the CUDA operations where they were
# built, and the pocket model with its drafts, placed as in an unpacked archive of ./package.sh.
install(TARGETS baltoro RUNTIME DESTINATION bin)
install(FILES $<TARGET_FILE_DIR:baltoro>/libbaltoro_cuda.so DESTINATION lib OPTIONAL)
foreach(folder model ${BT_POCKET_DRAFTS} eval)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/pocket/${folder} DESTINATION share/baltoro/pocket)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/pocket/README.md DESTINATION share/baltoro/pocket)
# A vLLM that is installed there keeps its name.
install(CODE [[
  set(link "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/bin/vllm")
  if(IS_SYMLINK "${link}")
    file(READ_SYMLINK "${link}" leads_to)
  endif()
  if(EXISTS "${link}" AND NOT "${leads_to}" STREQUAL "baltoro")
    message(WARNING "${link} is another program and stays as it is: call this one baltoro, or give another --prefix")
  else()
    file(CREATE_LINK baltoro "${link}" SYMBOLIC)
    message(STATUS "Installing: ${link} -> baltoro")
  endif()
]])
