// A watchdog as function platforms have it: each HTTP request forks a program, whose stdin is the body and whose stdout
// is the answer. watchdog PROGRAM
package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	run := func(answer http.ResponseWriter, request *http.Request) {
		var stdout, stderr bytes.Buffer
		command := exec.CommandContext(request.Context(), os.Args[1])
		command.Env = []string{}
		command.Stdin, command.Stdout, command.Stderr = request.Body, &stdout, &stderr
		if err := command.Run(); err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
			return
		}
		answer.Write(stdout.Bytes())
	}
	panic(http.Serve(listener, http.HandlerFunc(run)))
}
